from __future__ import annotations

from pathlib import Path

from distkeras_grid.sandbox import kerberos
from distkeras_grid.sandbox.configuration import Layout, Ports, environment, files
from distkeras_grid.sandbox.kerberos import Realm
from tests.distkeras_grid.sandbox.test_configuration import properties

LAYOUT = Layout(Path("/grid"))
REALM = Realm(LAYOUT.kerberos, "ada")


def written(realm: Realm | None) -> dict[Path, str]:
    return files(
        Ports(1, 2, 3, 4, 5, 6, 7, 8),
        LAYOUT,
        datanodes=1,
        memory_mb=4096,
        cores=8,
        pyspark=Path("/site/pyspark"),
        realm=realm,
    )


def test_nobody_needs_a_ticket_who_has_not_asked_for_it() -> None:
    told = "".join(written(None).values())
    assert not any(sign in told for sign in (".kerberos.", "krb5", "authentication"))
    assert not any(path.is_relative_to(LAYOUT.kerberos) for path in written(None))


def test_every_door_wants_a_ticket() -> None:
    sites = written(REALM)
    core = properties(sites[LAYOUT.client / "core-site.xml"])
    hdfs = properties(sites[LAYOUT.client / "hdfs-site.xml"])
    assert core["hadoop.security.authentication"] == "kerberos"
    # Without it pages and WebHDFS believe ?user.name=.
    assert core["hadoop.http.authentication.type"] == "kerberos"
    assert core["hadoop.http.authentication.simple.anonymous.allowed"] == "false"
    assert hdfs["dfs.block.access.token.enable"] == "true"
    assert hdfs["dfs.data.transfer.protection"] == "authentication"


def test_clients_and_the_kdc_agree_on_its_address_and_realm() -> None:
    sites = written(REALM)
    assert "kdc = 127.0.0.1:8\n" in sites[REALM.configuration]
    assert f"default_realm = {kerberos.REALM}\n" in sites[REALM.configuration]
    lines = sites[REALM.kdc_settings].splitlines()
    told = dict(line.split("=", 1) for line in lines)
    assert (told["kdc.bind.address"], told["kdc.port"]) == ("127.0.0.1", "8")
    assert f"{told['org.name']}.{told['org.domain']}" == kerberos.REALM


def test_every_principal_has_keys() -> None:
    made = kerberos.kdc_arguments(REALM)
    told = "".join(written(REALM).values())
    for principal in (kerberos.HDFS, kerberos.YARN, kerberos.PAGES):
        assert principal in made
        assert f"<value>{principal}@{kerberos.REALM}</value>" in told
    assert REALM.principal == f"{made[-1]}@{kerberos.REALM}"


def test_shells_and_jvms_find_the_realm() -> None:
    variables = environment(LAYOUT, REALM)
    assert variables["KRB5_CONFIG"] == str(REALM.configuration)
    assert str(REALM.configuration) in variables["SPARK_SUBMIT_OPTS"]
    defaults = written(REALM)[LAYOUT.client / "spark-defaults.conf"]
    # In place of extraJavaOptions, which a user's own would replace.
    assert f"spark.executor.defaultJavaOptions {REALM.java_option}\n" in defaults
    assert f"spark.driver.defaultJavaOptions {REALM.java_option}\n" in defaults
