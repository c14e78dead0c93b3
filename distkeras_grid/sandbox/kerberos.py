"""What a sandbox with Kerberos has more: principals, files and settings, as functions of addresses.

Names of daemons have the host as their second part, so that Hadoop's default rule gives them the
users ``hdfs`` and ``yarn``. A user's principal is that of the account that starts the sandbox.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "localhost"
REALM = "SANDBOX.LOCAL"
# The daemons of HDFS and of YARN, and the pages of both. SPNEGO fixes the name of the last one.
HDFS, YARN, PAGES = (f"{name}/{HOST}" for name in ("hdfs", "yarn", "HTTP"))
SERVICES = (HDFS, YARN, PAGES)
TICKET_DAYS = 1
RENEWABLE_DAYS = 7
# How far the clocks of two hosts may differ [s]. There is one host: a ticket is over when its time
# is, not the usual five minutes later. A busy machine needs a while until it checks what was sent.
CLOCK_SECONDS = 30


@dataclass(frozen=True)
class Realm:
    """The files of Kerberos in a sandbox, all in one folder, and its principals.

    Parameters
    ----------
    folder : Path
        That one; only its owner may enter.
    user : str
        The account whose keytab lies there.
    """

    folder: Path
    user: str

    @classmethod
    def of_this_user(cls, folder: Path) -> Realm:
        """Return that of the account that runs this."""
        return cls(folder, getpass.getuser())

    @property
    def principal(self) -> str:
        """The user's, with the realm."""
        return full(self.user)

    @property
    def keytab(self) -> Path:
        """The user's keys."""
        return self.folder / "user.keytab"

    @property
    def services(self) -> Path:
        """The daemons' keys."""
        return self.folder / "services.keytab"

    @property
    def all_keys(self) -> Path:
        """What the KDC writes, with everybody's keys; it is split and deleted."""
        return self.folder / "all.keytab"

    @property
    def configuration(self) -> Path:
        """What ``KRB5_CONFIG`` and Java's ``java.security.krb5.conf`` name."""
        return self.folder / "krb5.conf"

    @property
    def tickets(self) -> Path:
        """Where ``kinit`` puts the user's ticket; another one elsewhere stays as it is."""
        return self.folder / "tickets"

    @property
    def kdc_settings(self) -> Path:
        """What the KDC reads."""
        return self.folder / "kdc.properties"

    @property
    def kdc_files(self) -> Path:
        """The KDC's own folder."""
        return self.folder / "kdc"

    @property
    def cookie_secret(self) -> Path:
        """With it pages sign the cookie of a user whose ticket they have seen."""
        return self.folder / "cookie.secret"

    @property
    def java_option(self) -> str:
        """The option by which a JVM finds the realm; it does not look at ``KRB5_CONFIG``."""
        return f"-Djava.security.krb5.conf={self.configuration}"


def full(principal: str) -> str:
    """Return a principal with the realm."""
    return f"{principal}@{REALM}"


def krb5_conf(port: int) -> str:
    """Return ``krb5.conf``.

    Parameters
    ----------
    port : int
        The KDC's.
    """
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


def kdc_arguments(realm: Realm) -> Sequence[str]:
    """Return the arguments of Hadoop's ``MiniKdc``."""
    files = (realm.kdc_files, realm.kdc_settings, realm.all_keys)
    return [*map(str, files), *SERVICES, realm.user]


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


def spark_defaults(realm: Realm) -> dict[str, str]:
    """Return what ``spark-defaults.conf`` has more; a user's own Java options come after these."""
    return {
        "spark.driver.defaultJavaOptions": realm.java_option,
        "spark.executor.defaultJavaOptions": realm.java_option,
        "spark.yarn.am.extraJavaOptions": realm.java_option,
    }


def environment(realm: Realm) -> dict[str, str]:
    """Return the variables that a shell has more."""
    return {
        "KRB5_CONFIG": str(realm.configuration),
        "KRB5CCNAME": f"FILE:{realm.tickets}",
        # In cluster mode spark-submit reads no options of a driver, and needs the realm, too.
        "SPARK_SUBMIT_OPTS": realm.java_option,
    }
