"""One broker as a company runs it: TLS, passwords (SCRAM), tokens (OAUTHBEARER), client certificates, and nothing allowed
until an ACL says so. A listener without any of it is left to the administrator of the tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets to export them
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.broker import unique_name
from tests.support.certificates import Authority, Signed
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.config import ClientConfig
from txlayer.core.acls import Acl

HOST = "127.0.0.1"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
ITERATIONS = 4096


@dataclass(frozen=True, slots=True)
class User:
    """Who one is at the broker, and how one proves it."""

    name: str
    password: str

    @property
    def principal(self) -> str:
        """As ACLs name it."""
        return f"User:{self.name}"


@dataclass(frozen=True, slots=True)
class TlsBroker:
    """Where to reach it, and whom to trust."""

    broker: LocalBroker
    sasl_servers: str
    mutual_servers: str
    authority: Authority
    stranger: Authority
    client: Signed
    """A client's certificate; its principal is `User:CN=client`."""

    @property
    def open_servers(self) -> str:
        """The listener of the administrator, who may do everything."""
        return self.broker.bootstrap_servers

    def add_user(self, password: str = "a word of its own") -> User:
        """A new user with a password, who may do nothing yet."""
        user = User(unique_name("user"), password)
        admin = AdminClient({"bootstrap.servers": self.open_servers, "log_level": 0})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        change = UserScramCredentialUpsertion(user.name, info, password.encode())
        admin.alter_user_scram_credentials([change])[user.name].result(30)

        def is_known() -> bool:
            # A broker follows the controller by some milliseconds.
            told: Any = admin.describe_user_scram_credentials([user.name])
            try:
                told[user.name].result(30)
            except KafkaException:
                return False
            return True

        wait_until(is_known, within=30, what=f"{user.name} is known")
        return user

    def scram(self, user: User, *, password: str | None = None) -> dict[str, str]:
        """Client settings of a user, with a wrong password when one is given."""
        return {
            **self.tls,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user.name,
            "sasl.password": user.password if password is None else password,
        }

    def unsecured_token(self, name: str) -> dict[str, str]:
        """Client settings of a token that librdkafka makes itself, without a signature."""
        return {
            **self.tls,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={name}",
        }

    def mutual(self) -> dict[str, str]:
        """Client settings of the client's certificate."""
        return {
            **self.tls,
            "security.protocol": "SSL",
            "ssl.certificate.location": str(self.client.certificate),
            "ssl.key.location": str(self.client.key),
        }

    @property
    def tls(self) -> dict[str, str]:
        """Trust in the authority."""
        return {"ssl.ca.location": str(self.authority.root)}

    def allow(self, acls: Sequence[Acl]) -> None:
        """Create these, and wait until the broker knows them."""
        wanted = frozenset(acls)
        with KafkaAdmin(ClientConfig(bootstrap_servers=self.open_servers)) as admin:
            admin.create_acls(acls)
            wait_until(lambda: wanted <= admin.acls(), within=30, what="the ACLs are there")

    def withdraw(self, acls: Sequence[Acl]) -> None:
        """Remove these, and wait until the broker knows that."""
        admin = AdminClient({"bootstrap.servers": self.open_servers, "log_level": 0})
        filters = [
            AclBindingFilter(
                ResourceType[acl.resource.name],
                acl.name,
                ResourcePatternType[acl.pattern.name],
                acl.principal,
                acl.host,
                AclOperation[acl.operation.name],
                AclPermissionType.ALLOW,
            )
            for acl in acls
        ]
        for future in admin.delete_acls(filters).values():
            assert future.result(30)
        with KafkaAdmin(ClientConfig(bootstrap_servers=self.open_servers)) as known:
            wait_until(lambda: known.acls().isdisjoint(acls), within=30, what="the ACLs are gone")

    def allow_everything(self, principal: str) -> None:
        """Make somebody an administrator."""
        admin = AdminClient({"bootstrap.servers": self.open_servers, "log_level": 0})
        kinds = [
            (ResourceType.TOPIC, "*"),
            (ResourceType.GROUP, "*"),
            (ResourceType.TRANSACTIONAL_ID, "*"),
            (ResourceType.BROKER, "kafka-cluster"),
        ]
        bindings = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, principal, "*", AclOperation.ALL, AclPermissionType.ALLOW
            )
            for kind, name in kinds
        ]
        for future in admin.create_acls(bindings).values():
            future.result(30)
        with KafkaAdmin(ClientConfig(bootstrap_servers=self.open_servers)) as known:
            wait_until(
                lambda: sum(a.principal == principal for a in known.acls()) >= len(bindings),
                within=30,
                what=f"{principal} may do everything",
            )


def tls_broker(config: LocalConfig, folder: Path) -> TlsBroker:
    """A broker that is not started yet."""
    client, controller, sasl, mutual = free_ports(4)
    authority = Authority(folder, "authority")
    server = authority.sign("broker")
    listeners = f"PLAINTEXT://{HOST}:{client},SASL://{HOST}:{sasl},MUTUAL://{HOST}:{mutual}"
    properties: dict[str, Any] = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL"),
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": (
            f'{_OAUTH} required unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.root),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    return TlsBroker(
        broker=LocalBroker(config=config, properties=properties, port=client),
        sasl_servers=f"{HOST}:{sasl}",
        mutual_servers=f"{HOST}:{mutual}",
        authority=authority,
        stranger=Authority(folder, "stranger"),
        client=authority.sign("client"),
    )
