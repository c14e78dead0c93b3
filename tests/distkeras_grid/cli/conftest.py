from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from distkeras_grid.sandbox.configuration import render_site
from tests.distkeras_grid.submission.pages import yarn_pages


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """What serves YARN's pages, or other answers by their path; HADOOP_CONF_DIR names them."""
    with ExitStack() as opened:

        def serve(answers: dict[str, object] | None = None) -> None:
            url = opened.enter_context(yarn_pages(answers))
            site = {"yarn.resourcemanager.webapp.address": url.removeprefix("http://")}
            (tmp_path / "yarn-site.xml").write_text(render_site(site))
            monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

        yield serve
