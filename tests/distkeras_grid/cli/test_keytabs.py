"""`--principal` and `--keytab` of the verbs that ask YARN: a host may have no ticket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from distkeras_grid.cli import cancel, logs, status
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.submit import build_parser, in_client, planned
from distkeras_grid.errors import ClusterError
from distkeras_grid.sandbox.configuration import render_site
from distkeras_grid.submission import jvm
from distkeras_grid.tickets import Keytab
from distkeras_grid.webhdfs import network
from tests.distkeras_grid.submission.pages import FAILED, RUNNING

VERBS = {cancel: [RUNNING], logs: [RUNNING], status: []}
EVALUATE = ("evaluate", "--data", "hdfs:///predicted")


@dataclass
class Asked:
    """With which keytab pages were asked, and with which settings a JVM was started."""

    keytab: Keytab
    pages: list[Keytab | None] = field(default_factory=list)
    clients: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def flags(self) -> list[str]:
        return ["--principal", self.keytab.principal, "--keytab", self.keytab.file]

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.kerberos.principal": self.keytab.principal,
            "spark.kerberos.keytab": self.keytab.file,
        }


@pytest.fixture
def asked(tmp_path: Path, yarn: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A keytab, and a cluster that wants tickets everywhere; its JVM does not start."""
    file = tmp_path / "ada.keytab"
    file.touch()
    asked = Asked(Keytab("ada@GRID", str(file)))

    def client(settings: Mapping[str, str]) -> None:
        asked.clients.append(settings)
        raise ClusterError("There is no Java here.")

    monkeypatch.setattr(network, "ticket_authentication", asked.pages.append)
    monkeypatch.setattr(jvm, "hadoop_client", client)
    site = {"hadoop.http.authentication.type": "kerberos"}
    (tmp_path / "core-site.xml").write_text(render_site(site))
    yarn()
    return asked


@pytest.mark.parametrize("verb", [logs, status])
def test_pages_are_asked_with_the_keytab(verb: ModuleType, asked: Asked) -> None:
    assert verb.main([*asked.flags, *VERBS[verb]]) == ExitCode.OK
    assert set(asked.pages) == {asked.keytab}


def test_hadoop_s_own_client_is_given_the_keytab(asked: Asked) -> None:
    assert logs.main([FAILED, *asked.flags]) == ExitCode.CLUSTER
    assert asked.clients == [asked.settings]


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_keytab_the_ticket_of_kinit_is_taken(verb: ModuleType, asked: Asked) -> None:
    verb.main(VERBS[verb])
    assert set(asked.pages) <= {None}
    assert all(settings == {} for settings in asked.clients)
    assert asked.pages or asked.clients


@pytest.mark.parametrize("by_setting", [False, True])
def test_in_client_mode_the_application_is_looked_for_with_the_keytab_of_submit(
    by_setting: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distkeras_grid.submission.spark_submit.follow", lambda *_: 0)
    settings = [f"--conf={name}={value}" for name, value in asked.settings.items()]
    flags = build_parser().parse_args([*(settings if by_setting else asked.flags), *EVALUATE])
    assert in_client([], planned(flags)) == ExitCode.OK
    assert asked.pages == [asked.keytab]
