"""A prepared store of 22 tiny samples, and configs over it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.one_thread import one_thread as one_thread
from tests.train.tiny import config_of, prepare, write_rows


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files whose store is made; do not change either."""
    path = write_rows(tmp_path_factory.mktemp("tiny") / "raw")
    prepare(config_of(path, path.parent))
    return path


@pytest.fixture
def make_config(manifest: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Settings in, a config with its runs in this test's folder out."""
    return lambda **settings: config_of(manifest, tmp_path / "runs", **settings)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of `tmp_path` on the web."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
