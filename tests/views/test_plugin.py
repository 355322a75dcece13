"""An estimator of another package: its own file, its view, an entry point, and every tool follows."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ESTIMATOR = '''
    """How near rows are to the mean, as an energy: no hidden unit does anything."""

    import numpy as np
    import torch
    from sklearn.base import BaseEstimator, OutlierMixin
    from sklearn.utils.validation import validate_data

    from energate import Autoencoder, MeanUnits
    from energate.estimators.edge import SCALINGS, FittedMixin, in_chunks


    class Nearness(OutlierMixin, FittedMixin, BaseEstimator):
        _FITTED = ("scaler_", "offset_")

        def __init__(self, share=0.1):
            self.share = share

        def fit(self, X, y=None):
            X = validate_data(self, X, dtype=np.float64)
            self.scaler_ = SCALINGS["standard"](X, np.ones(len(X)))
            self.model_ = self._untrained().double()
            self.offset_ = float(np.quantile(self.score_samples(X), self.share))
            return self

        def _untrained(self):
            return Autoencoder([MeanUnits(1, self.n_features_in_, 1, generator=torch.Generator().manual_seed(0))])

        def score_samples(self, X):
            X = validate_data(self, X, dtype=np.float64, reset=False)
            return in_chunks(X, self.scaler_, self.model_.a, lambda v: self.model_.energy(v)[0])

        def predict(self, X):
            return np.where(self.score_samples(X) >= self.offset_, 1, -1)
'''

VIEW = '''
    """What tools ask of it."""

    import torch
    from nearness.estimator import Nearness
    from torch import nn

    from energate.views import Command, Output, View
    from energate.views.accounts import AnomalyAccount
    from energate.views.graphs import Graph, Scaling, no_ties
    from energate.views.view import FLAG, LABEL, Course, Field, drawn, in_double


    class NearnessGraph(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.scaling, self.inner = Scaling(model.scaler_, unit=False), in_double(model.model_)

        def forward(self, X):
            return (self.inner.energy(self.scaling(X))[0],)


    class NearnessView(View):
        estimator, account, moves, task, labels = Nearness, AnomalyAccount, True, "anomaly", ()

        def about(self):
            return {"threshold": self.model.offset_}

        def said(self, X):
            energies = self.model.score_samples(X)
            scores = energies - self.model.offset_
            with torch.no_grad():
                near = self.model.model_.reconstruct(torch.as_tensor(self.model.scaler_(X)))[0].numpy()
            return {
                "energies": energies, "scores": scores, "is_inlier": scores >= 0, "predictions": self.model.predict(X),
                "reconstructions": self.model.scaler_.undo(near)[:, None],
            }

        def commands(self):
            score, inlier = Output("scores", "score"), Output("is_inlier", "is_inlier", kind=FLAG)
            predicted, energies = Output("predictions", "prediction", kind=LABEL), Output("energies", "energy")
            whole = (energies, score, inlier, Output("reconstructions", "as_", ("model", "column")))
            return {
                "predict": Command("Whether rows are near.", (predicted,), self.said),
                "score": Command("How near rows are.", (score, inlier), self.said),
                "explain": Command("Everything.", whole, self.said, alone=True, n_values=self.n_features),
            }

        def draw(self, n_rows, seed):
            return drawn(n_rows, seed, unit=False, X=self.model.scaler_)

        def fields(self, rows, seed):
            yield Field("all rows", in_double(self.model.model_), torch.as_tensor(self.model.scaler_(rows["X"])))

        def checked(self):
            return "its one auto-encoder"

        def course(self, X, of):
            return Course(self.model.model_, 0, 1.0, 0.0, None)

        def graph(self):
            def reference(X):
                return {"energy": self.model.score_samples(X)}

            return Graph(NearnessGraph(self.model), {"X": self.n_features}, ("energy",), reference, no_ties)
'''

USE = """
    import asyncio
    import json
    from pathlib import Path

    import httpx
    import numpy as np
    from nearness.estimator import Nearness
    from typer.testing import CliRunner

    import energate
    from energate.cli import app
    from energate.serving import make_app, serve_model

    rows = np.random.default_rng(0).normal(size=(80, 3)) * [1, 10, 0.1]
    lines = ["a,b,c", *(",".join(map(str, row)) for row in rows), "90,90,90"]
    Path("t.csv").write_text("\\n".join(lines) + "\\n")
    fitted = energate.fit_table("t.csv", task="anomaly", estimator=Nearness(share=0.2))
    assert fitted.held_out["rows"] == 16
    energate.save(fitted.model, "near.zip", columns=fitted.columns)
    loaded = energate.load("near.zip")
    np.testing.assert_allclose(loaded.score_samples(rows), fitted.model.score_samples(rows))
    assert loaded.share == 0.2

    def call(*words):
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output + str(result.exception)
        return result.stdout

    call("predict", "near.zip", "t.csv", "-o", "p.csv")
    assert Path("p.csv").read_text().splitlines()[0] == "a,b,c,prediction"
    assert Path("p.csv").read_text().splitlines()[-1].endswith(",-1")
    call("score", "near.zip", "t.csv", "-o", "s.csv")
    assert Path("s.csv").read_text().splitlines()[0] == "a,b,c,score,is_inlier"
    assert json.loads(call("check", "near.zip", "--json"))["conservative"]
    assert json.loads(call("explain", "near.zip", "t.csv", "--row", "81", "--json"))["prediction"] == "anomaly"
    exported = json.loads(call("export", "near.zip", "--onnx", "near.onnx", "--json"))
    assert exported["largest_difference"] < 1e-4
    async def ask():
        transport = httpx.ASGITransport(make_app(serve_model(loaded, fitted.columns)))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            row = {"a": 90, "b": 90, "c": 90}
            found = await client.post("/predict", json={"rows": [row]})
            moved = await client.post("/trajectory", json={"row": row})
            return (await client.get("/model")).json(), found.json(), moved.json()

    about, found, moved = asyncio.run(ask())
    assert (about["estimator"], found["predictions"]) == ("Nearness", [-1])
    assert len(moved["points"]) > 1
    print("all of it")
"""


def test_an_estimator_of_another_package_gets_every_tool(tmp_path: Path) -> None:
    for module in ("starlette", "onnxruntime", "onnxscript", "httpx"):
        pytest.importorskip(module)
    package, about = tmp_path / "nearness", tmp_path / "nearness-1.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").touch()
    (package / "estimator.py").write_text(textwrap.dedent(ESTIMATOR))
    (package / "view.py").write_text(textwrap.dedent(VIEW))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nearness\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[energate.views]\nnearness = nearness.view:NearnessView\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{textwrap.dedent(USE)}"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stdout.endswith("all of it\n"), run.stderr
