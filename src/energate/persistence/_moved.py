"""Where classes were when older versions wrote them: skops names them by their modules."""

import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

_PAPER = "energate.paper.baselines"
#: old module -> the module that its classes are in now
MODULES = {
    "energate.estimators._base": "energate.estimators.edge",
    "energate.estimators._networks": "energate.estimators.mlp",
    "energate.estimators._outputs": "energate.estimators.bases",
    **{f"energate.baselines._{old}": f"{_PAPER}.networks" for old in ("gated", "layers", "perceptron")},
    **{f"energate.baselines._{old}": f"{_PAPER}.svms" for old in ("svm", "svmlabels")},
    **{f"energate.baselines._{old}": f"{_PAPER}.over" for old in ("meanlabels", "logcount")},
    "energate.baselines._deep": "energate.estimators.images",
    "energate.baselines._hashcrbm": f"{_PAPER}.hashcrbm",
    "energate.baselines._multilabel": f"{_PAPER}.labels",
    "energate.baselines._network": "energate.estimators.network",
    "energate.baselines._rbm": f"{_PAPER}.rbm",
}
#: classes that did not go where the others of their module went, or have another name
CLASSES = {
    "energate.baselines._deep.DeepEnergyClassifier": "energate.estimators.images.ImageEnergyClassifier",
    "energate.baselines._deep.DeepNetwork": "energate.estimators.images.ImageNetwork",
    "energate.baselines._multilabel.LabelClassifier": f"{_PAPER}.shared.LabelClassifier",
    "energate.baselines._multilabel.SeparateLabels": f"{_PAPER}.shared.SeparateLabels",
    "energate.baselines._perceptron.Network": "energate.estimators.network.Network",
}


def new_name(name: str) -> str:
    """What a class is called now."""
    module, _, last = name.rpartition(".")
    return CLASSES.get(name, f"{MODULES.get(module, module)}.{last}" if module else name)


def new_names(names: Sequence[str]) -> set[str]:
    """What classes are called now."""
    return {new_name(name) for name in names}


def renamed(data: bytes) -> bytes:
    """A file of skops in which classes have the names of today; files without moved ones stay as they are."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # As skops writes it: what is only stored cannot grow when it is read.
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("its members must be stored, not compressed")
        content = {info: archive.read(info) for info in archive.infolist()}
    schema = next((info for info in content if info.filename == "schema.json"), None)
    if schema is None or b"energate." not in content[schema]:
        return data
    content[schema] = json.dumps(_renamed(json.loads(content[schema]))).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for info, member in content.items():
            archive.writestr(info, member)
    return buffer.getvalue()


def _renamed(node: Any) -> Any:
    if isinstance(node, list):
        return [_renamed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _renamed(value) for key, value in node.items()}
    if isinstance(found.get("__module__"), str) and isinstance(found.get("__class__"), str):
        now = new_name(f"{found['__module__']}.{found['__class__']}")
        found["__module__"], _, found["__class__"] = now.rpartition(".")
    return found
