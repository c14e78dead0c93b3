"""The sandbox with Kerberos: a KDC beside its daemons, and keytabs for them and for the user.

Names of daemons have the host as their second part, so that Hadoop's default rule gives them the
users ``hdfs`` and ``yarn``. A user's principal is that of the account that starts the sandbox.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import shutil
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import requests

from distkeras_grid.sandbox import daemons, readiness
from distkeras_grid.sandbox.class_path import HADOOP_VERSION, Jar, local_jars, pyspark_folder
from distkeras_grid.sandbox.cluster import Sandbox, free_ports
from distkeras_grid.sandbox.configuration import HOST, render_site
from distkeras_grid.sandbox.readiness import WebUI
from distkeras_grid.tickets import Keytab, ticket_authentication

REALM = "SANDBOX.LOCAL"
# The daemons of HDFS and of YARN, and the pages of both. SPNEGO fixes the name of the last one.
HDFS, YARN, PAGES = (f"{name}/{HOST}" for name in ("hdfs", "yarn", "HTTP"))
SERVICES = (HDFS, YARN, PAGES)
TICKET_DAYS = 1
RENEWABLE_DAYS = 7
# How far the clocks of two hosts may differ [s]. There is one host: a ticket is over when its time
# is, not the usual five minutes later. A busy machine needs a while until it checks what was sent.
CLOCK_SECONDS = 30
# Some 2 s.
KDC_SECONDS = 60.0
KDC = "org.apache.hadoop.minikdc.MiniKdc"
# Triple DES, which today's clients refuse, or call deprecated.
WEAK = 16
# Apache Kerby, and Hadoop's own way to start it (`MiniKdc`): 1.3 MB. MIT's krb5kdc would take a
# tenth of the memory, but root has to install it. Kerby needs the Java that is here anyway, and
# MIT's clients and Java's get their tickets from it just as well. What it does not do is keep keys:
# each start makes new ones, and with them new keytabs.
KERBY_VERSION = "2.1.1"
KDC_JARS = (
    Jar(
        "org.apache.hadoop",
        "hadoop-minikdc",
        HADOOP_VERSION,
        "ae8f93c61ff6795336eaf6f4886b710aa8d6143402bd7a3ad1131dbe063b6f73",
    ),
    *(
        Jar("org.apache.kerby", artifact, KERBY_VERSION, sha256)
        for artifact, sha256 in (
            ("kerb-simplekdc", "40cd479cc8f9dd230e0a75c01abfa1d18daadc4d6c0abd8d76962eea560fe27b"),
            ("kerb-client", "933a1c1c2d816e066170744fc506a9f1829263b16188d9dbc900a9e07b4e4fbe"),
            ("kerb-admin", "6c7c322729f8a05ef96d2510166501922cab93325c2e1ac23926c08c70b82c5a"),
            ("kerb-common", "28a3c75be913dd8bd9101aa7f89563f2ae2de0bcc1dfecd4921de166a15adae9"),
            ("kerb-core", "694d1ed7259ccc8cf0a39283c7188ca32bf85fd4852cdba689dc431bdeaaeddc"),
            ("kerb-crypto", "3c1b59edf993fe4deef105727c17dd2870af03f36b988457defa57dabd301d86"),
            ("kerb-identity", "a6c2f36e3e652e607f4617c4902acfe22dfd65e7a5ec818bfcbf4a03d563460d"),
            ("kerb-server", "ce98ebd7650a4b7aba32f41381aad8166ba747c5bc31c02ee40da775fd666598"),
            ("kerb-util", "8afd67fcedc4021e0052f88b9127e2b43c710e6dc96b21744a4acd3d6724c50b"),
            ("kerby-asn1", "34ad418612f2c313cf31ed00c83c4c405f30cb45693126c6d2c07b549be1a31c"),
            ("kerby-config", "0572bc9edc0ddeaff34ff9c4e251ae3eeacfdb7b537c3cf228315ec3e9fb5d1b"),
            ("kerby-pkix", "0db68b5720bd6178f103911fe35b590e66b20a84e7dcde5082e81d56a6821050"),
            ("kerby-util", "4ebc18552558c437ea4fbeda8a7cdbc056ed643d25d68ff1dc4f2527e1f75092"),
        )
    ),
)
# What the KDC needs of PySpark's jars.
FOR_KDC = ("slf4j-api-*.jar", "log4j-*.jar", "commons-io-*.jar")


class Realm:
    """The files of Kerberos in a sandbox, all in one folder, and its principals."""

    def __init__(self, folder: Path, user: str) -> None:
        self.folder, self.user = folder, user
        self.principal = full(user)
        self.keytab = folder / "user.keytab"
        self.services = folder / "services.keytab"  # The daemons' keys
        self.all_keys = folder / "all.keytab"  # What the KDC writes, with everybody's keys
        # What KRB5_CONFIG names, and the option of a JVM, which does not look at KRB5_CONFIG
        self.configuration = folder / "krb5.conf"
        self.java_option = f"-Djava.security.krb5.conf={self.configuration}"
        self.kdc_settings, self.kdc_files = folder / "kdc.properties", folder / "kdc"
        # With it pages sign the cookie of a user whose ticket they have seen
        self.cookie_secret = folder / "cookie.secret"


@dataclass(frozen=True)
class SecurePages(WebUI):
    """The daemons' pages, as the user and the administrator of HDFS see them."""

    keytab: Keytab
    administrator: Keytab | None = None

    @cached_property
    def _session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.auth = ticket_authentication(self.keytab)
        return session

    def make_homes(self, user: str) -> None:
        assert self.administrator is not None
        pages = SecurePages(self.namenode, self.resourcemanager, self.administrator)
        WebUI.make_homes(pages, user)
        pages._files().set_owner(f"/user/{user}", owner=user)


class KerberosSandbox(Sandbox):
    """A sandbox where everybody needs a ticket, of a KDC that runs beside the daemons."""

    def __init__(self, folder: Path, memory_mb: int) -> None:
        super().__init__(folder, memory_mb=memory_mb)
        self.realm = Realm(self.layout.root / "kerberos", getpass.getuser())
        self.kdc_port = free_ports().namenode

    def environment(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.realm.configuration),
            # In cluster mode spark-submit reads no options of a driver, and needs the realm, too.
            "SPARK_SUBMIT_OPTS": self.realm.java_option,
            **super().environment(),
        }

    def _configure(self) -> None:
        super()._configure()
        realm = self.realm
        realm.folder.mkdir(mode=0o700, exist_ok=True)
        realm.cookie_secret.write_text(secrets.token_hex(32))
        realm.configuration.write_text(krb5_conf(self.kdc_port))
        realm.kdc_settings.write_text(kdc_properties(self.kdc_port))
        sites = {"core": core_site(realm), "hdfs": hdfs_site(realm), "yarn": yarn_site(realm)}
        for name, more in sites.items():
            file = self.layout.client / f"{name}-site.xml"
            root = ElementTree.fromstring(file.read_text())
            known = {each.findtext("name", ""): each.findtext("value", "") for each in root}
            file.write_text(render_site(known | more))
        options = ("spark.driver.default", "spark.executor.default", "spark.yarn.am.extra")
        with (self.layout.client / "spark-defaults.conf").open("a") as file:
            file.writelines(f"{option}JavaOptions {realm.java_option}\n" for option in options)
        with self.layout.environment.open("a") as file:
            file.writelines(f"export {n}={shlex.quote(v)}\n" for n, v in self.environment().items())

    def _start_all(self, path: list[str], deadline: float) -> None:
        self._start_kdc()
        with using_realm(self.realm.configuration):
            super()._start_all(path, deadline)

    def _start_kdc(self) -> None:
        """Start the KDC, and give everybody their keys."""
        realm = self.realm
        shutil.rmtree(realm.kdc_files, ignore_errors=True)
        realm.kdc_files.mkdir()
        bundled = (path for pattern in FOR_KDC for path in pyspark_folder().glob(pattern))
        files = (realm.kdc_files, realm.kdc_settings, realm.all_keys)
        arguments = [*map(str, files), *SERVICES, realm.user]
        class_path = [*local_jars(KDC_JARS, os.environ), *sorted(map(str, bundled))]
        daemons.start(self._command("kdc", class_path, KDC, *arguments), self._log("kdc"))
        deadline = time.monotonic() + KDC_SECONDS
        readiness.wait_for(
            "The KDC", lambda: split_keys(realm), lambda: self._check(["kdc"]), deadline
        )

    def _pages(self) -> WebUI:
        ports, realm = self.state.ports, self.realm
        return SecurePages(
            f"{HOST}:{ports.namenode_http}",
            f"{HOST}:{ports.resourcemanager_http}",
            Keytab(realm.principal, str(realm.keytab)),
            Keytab(full(HDFS), str(realm.services)),
        )

    def _command(self, name: str, path: list[str], main: str, *arguments: str) -> list[str]:
        java, *rest = super()._command(name, path, main, *arguments)
        return [java, self.realm.java_option, *rest]


@contextmanager
def using_realm(configuration: Path) -> Iterator[None]:
    """Let this process use another ``krb5.conf``: Kerberos' library reads it at each call."""
    before = os.environ.get("KRB5_CONFIG")
    os.environ["KRB5_CONFIG"] = str(configuration)
    try:
        yield
    finally:
        del os.environ["KRB5_CONFIG"]
        if before is not None:
            os.environ["KRB5_CONFIG"] = before


def split_keys(realm: Realm) -> bool:
    """Give the user and the daemons their keytabs; False while the KDC still writes its own."""
    try:
        everybodys = realm.all_keys.read_bytes()
        users = only(everybodys, [realm.user])
        services = only(everybodys, SERVICES)
    except (FileNotFoundError, EOFError):
        # It adds one principal after the other; where it fails, its process ends.
        return False
    realm.keytab.write_bytes(users)
    realm.services.write_bytes(services)
    return True


def only(keytab: bytes, principals: Collection[str]) -> bytes:
    """Return a keytab with the keys of some principals, those of weak ciphers left out.

    https://web.mit.edu/kerberos/krb5-latest/doc/formats/keytab_file_format.html
    """
    kept, found, at = [keytab[:2]], set(), 2
    while at < len(keytab):
        (size,) = struct.unpack_from(">i", keytab.ljust(at + 4, b"\0"), at)
        entry = keytab[at : at + 4 + size]
        if len(entry) < 4 + size:
            raise EOFError
        at += 4 + size
        (count,) = struct.unpack_from(">H", entry, 4)
        parts, place = [], 6
        for _ in range(count + 1):
            (length,) = struct.unpack_from(">H", entry, place)
            parts.append(entry[place + 2 : place + 2 + length].decode())
            place += 2 + length
        # The realm comes first. The kind of the name, the time, and a short version of the key's
        # number stand before the cipher.
        name = "/".join(parts[1:])
        (cipher,) = struct.unpack_from(">H", entry, place + 9)
        if name in principals and cipher != WEAK:
            kept.append(entry)
            found.add(name)
    if found != set(principals):
        raise EOFError
    return b"".join(kept)


def full(principal: str) -> str:
    """Return a principal with the realm."""
    return f"{principal}@{REALM}"


def krb5_conf(port: int) -> str:
    return f"""\
[libdefaults]
    default_realm = {REALM}
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
    clockskew = {CLOCK_SECONDS}

[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{port}
    }}
"""


def kdc_properties(port: int) -> str:
    """Return the settings of Hadoop's ``MiniKdc``."""
    name, _, domain = REALM.partition(".")
    day = 24 * 3600 * 1000
    properties = {
        "org.name": name,
        "org.domain": domain,
        "kdc.bind.address": "127.0.0.1",
        "kdc.port": port,
        "instance": "sandbox",
        "transport": "TCP",
        "max.ticket.lifetime": TICKET_DAYS * day,
        "max.renewable.lifetime": RENEWABLE_DAYS * day,
        "debug": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def core_site(realm: Realm) -> dict[str, str]:
    """Return what ``core-site.xml`` has more."""
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        # Without these pages and WebHDFS believe ?user.name=, though all else wants a ticket.
        "hadoop.http.filter.initializers": (
            "org.apache.hadoop.security.AuthenticationFilterInitializer"
        ),
        "hadoop.http.authentication.type": "kerberos",
        "hadoop.http.authentication.simple.anonymous.allowed": "false",
        "hadoop.http.authentication.kerberos.principal": full(PAGES),
        "hadoop.http.authentication.kerberos.keytab": str(realm.services),
        "hadoop.http.authentication.signature.secret.file": str(realm.cookie_secret),
    }


def hdfs_site(realm: Realm) -> dict[str, str]:
    """Return what ``hdfs-site.xml`` has more."""
    keytab = str(realm.services)
    return {
        "dfs.namenode.kerberos.principal": full(HDFS),
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": full(HDFS),
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.principal": full(PAGES),
        "dfs.web.authentication.kerberos.keytab": keytab,
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "authentication",
        # A DataNode wants ports below 1024, which only root may open, or HTTPS.
        "ignore.secure.ports.for.testing": "true",
    }


def yarn_site(realm: Realm) -> dict[str, str]:
    """Return what ``yarn-site.xml`` has more."""
    return {
        **{
            f"yarn.{daemon}.{name}": value
            for daemon in ("resourcemanager", "nodemanager")
            for name, value in (("principal", full(YARN)), ("keytab", str(realm.services)))
        },
        # With Kerberos Hadoop collects logs by native code only, which PySpark's jars lack: the
        # NodeManager would end with the first application. They stay in the sandbox's folder.
        "yarn.log-aggregation-enable": "false",
    }
