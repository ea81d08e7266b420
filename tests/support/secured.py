"""A broker that asks who one is: users with passwords on one listener, rights by ACL, everything allowed on the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.server import free_ports

HOST = "127.0.0.1"
USERS = {"guest": "guest's own word", "other": "other's own word"}


@dataclass(frozen=True, slots=True)
class SecuredServers:
    """Where to reach it; `open_servers` asks nobody."""

    broker: LocalBroker
    secured_servers: str

    @property
    def open_servers(self) -> str:
        """The listener of the administrator, who may do everything."""
        return self.broker.bootstrap_servers


def secured_broker(config: LocalConfig) -> SecuredServers:
    """A broker that is not started yet; its users may do nothing until an ACL says so."""
    client, controller, secured = free_ports(3)
    words = " ".join(f'user_{name}="{word}"' for name, word in USERS.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    listeners = f"PLAINTEXT://{HOST}:{client},SASL://{HOST}:{secured}"
    properties = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{module} required {words};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    broker = LocalBroker(config=config, properties=properties, port=client)
    return SecuredServers(broker, f"{HOST}:{secured}")


def credentials(user: str = "guest", *, password: str | None = None) -> Mapping[str, str]:
    """Client settings of a user, with a wrong password when one is given."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user] if password is None else password,
    }


def credential_options(file: Path, *, password: str | None = None) -> list[str]:
    """The same as options of a command; the password stands in `file`, as a command line may hold none."""
    said = dict(credentials(password=password))
    file.write_text(said.pop("sasl.password"), encoding="utf-8")
    said["sasl.password.file"] = str(file)
    return [f"-X{name}={value}" for name, value in said.items()]
