"""How Sphinx builds these pages: `make docs`.

The pages need nothing from elsewhere, neither to build nor to be read: fonts, scripts and style come with the theme,
formulas are plain text, and there are no links into the pages of other projects' references.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import torch

import energate
from energate.paper import TABLES, markdown_table, write_report

HERE = Path(__file__).parent
GENERATED = HERE / "generated" / "results"

project = "energate"
author = "The energate developers"
project_copyright = author
version = release = energate.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
# Made by the build, and no pages; the sources of the gallery become pages elsewhere.
exclude_patterns = ["_build", "gallery", "generated/results"]
templates_path = ["_templates"]
myst_heading_anchors = 3  # links such as saving.md#security
suppress_warnings = ["config.cache"]  # the order of the gallery is a function

html_theme = "pydata_sphinx_theme"
html_title = f"energate {release}"
html_static_path = ["_static"]
html_css_files = ["energate.css"]
html_extra_path = ["generated/results/site"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "energate"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "friendly",
    "pygments_dark_style": "native",
}
html_sidebars: dict[str, list[str]] = {name: [] for name in ("index", "start", "results", "architecture")}

# --- the reference ------------------------------------------------------------------------------------------------

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # the template of a class lists them
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
default_role = "py:obj"  # `name` in a docstring is a link where the name is known, and code where it is not
viewcode_line_numbers = True

SECTIONS = {"Parameters", "Attributes", "Returns"}


def _prose_of_parameters(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Bring ``name : what it is`` into the form of numpydoc, where only a type may follow the colon.

    Docstrings here say in one sentence what a parameter is, and begin it on the line of the name; the types are in the
    signature.  Text after a section becomes a section of its own, since numpydoc would take it for a parameter.
    """
    found: list[str] = []
    section = ""
    for i, line in enumerate(lines):
        underlined = i + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[i + 1].strip())
        if underlined and line.strip() in SECTIONS:
            section = line.strip()
        elif section and i and not lines[i - 1].strip() and line and not line.startswith(" ") and " : " not in line:
            section = ""  # plain text again
            found += ["Notes", "-----"]
        entry = re.fullmatch(r"([\w, .*]+?) : (.+)", line) if section else None
        found += [entry[1], f"    {entry[2]}"] if entry else [line]
    # |v| is a norm here, and never a substitution; what stands between double quotes is taken as it is.
    lines[:] = [
        "``".join(re.sub(r"\|", r"\\|", s) if i % 2 == 0 else s for i, s in enumerate(line.split("``")))
        for line in found
    ]


def _only_ours(_app: Any, _what: str, name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out of a class what it has from torch or scikit-learn."""
    home = getattr(member.fget if isinstance(member, property) else member, "__module__", None)
    foreign = isinstance(home, str) and not home.startswith("energate")
    return True if foreign or re.fullmatch(r"set_\w+_request|forward|extra_repr", name) else None


# --- the gallery --------------------------------------------------------------------------------------------------

ORDER = [
    "plot_vector_field.py",
    "plot_potential.py",
    "plot_classifier.py",
    "plot_anomaly.py",
    "plot_images.py",
    "plot_multilabel.py",
    "plot_pairs.py",
    "plot_new_units.py",
]


def _threads(_gallery: Any, _file: Any) -> None:
    """Small models are as fast on one thread, and the machine may have other work."""
    torch.set_num_threads(1)


sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": ORDER.index,
    "reset_modules": ("matplotlib", _threads),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,  # the time of a build says little
    "remove_config_comments": True,
    "capture_repr": (),  # what is to be seen is printed
    "image_srcset": ["2x"],
    "thumbnail_size": (400, 280),
}

# --- the results --------------------------------------------------------------------------------------------------


def _write_results(_app: Any, _config: Any) -> None:
    """All tables but the first, and the whole report, from the files of results; what an older build left goes."""
    shutil.rmtree(GENERATED.parent, ignore_errors=True)
    (GENERATED / "site").mkdir(parents=True)
    results = HERE.parent / "results"
    others = [folder for folder in sorted(results.iterdir()) if folder.name in TABLES and folder.name != "table1"]
    text = "\n".join(f"### {TABLES[other.name].title}\n\n{markdown_table(other)}" for other in others)
    (GENERATED / "others.md").write_text(text, encoding="utf-8")
    write_report(results, GENERATED / "site" / "report-of-all-results.html")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("config-inited", _write_results)
    app.connect("autodoc-process-docstring", _prose_of_parameters, priority=100)  # before numpydoc
    app.connect("autodoc-skip-member", _only_ours)
