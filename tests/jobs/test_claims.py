"""Claims: one process at a time has a piece of work, and what a dead one had is taken over."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from energate import claims
from energate.claims import Claims
from energate.errors import InputError


def test_a_claim_is_for_one_until_it_is_released(tmp_path: Path) -> None:
    with Claims(tmp_path / "c") as first, Claims(tmp_path / "c") as second:
        assert first.take("a")
        assert not second.take("a")
        assert second.take("b")
        first.release("a")
        assert second.take("a")
    assert not (tmp_path / "c").exists()


def test_what_a_dead_process_had_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    def write(name: str, host: str, pid: int) -> Path:
        path = tmp_path / f"{name}.claim"
        path.write_text(json.dumps({"host": host, "pid": pid}))
        return path

    write("here", socket.gethostname(), ended.pid)
    elsewhere = write("elsewhere", "another machine", os.getpid())
    (tmp_path / "written.claim").write_text("")
    with Claims(tmp_path) as mine:
        assert mine.take("here")
        assert not mine.take("elsewhere")
        monkeypatch.setattr(claims, "STALE", -1.0)
        os.utime(elsewhere, ns=(1, 1))  # it was touched since it was seen: its process lives
        assert not mine.take("elsewhere")
        assert mine.take("elsewhere"), "it was not touched again"
        assert mine.take("written")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Claims(tmp_path / "file" / "c") as mine, pytest.raises(InputError, match="cannot be written"):
        mine.take("a")
