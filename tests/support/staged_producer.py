"""A producer process that stops at one stage of one transaction until it is told to go on, or dies there.

    python -m tests.support.staged_producer SERVERS NAMESPACE TOPIC DATABASE STAGE

It says `at STAGE` when it is there, and goes on with the next line of its input; without any it ends. Its producer
group is named after the stage, so that only those who know this database answer for it.
"""

import sys
import threading
from enum import Enum

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.support.shop import Order, make_shop
from txlayer import TransactionalProducer
from txlayer.errors import TxLayerError


class Stage(Enum):
    """How far a transaction is."""

    BEFORE_HALF = "before-half"
    HALF_WRITTEN = "half-written"  #: under way, not acknowledged as far as the producer knows
    HALF_ACKNOWLEDGED = "half-acknowledged"
    LOCAL_BEGUN = "local-begun"
    LOCAL_COMMITTED = "local-committed"
    OP_WRITTEN = "op-written"
    OP_ACKNOWLEDGED = "op-acknowledged"
    FORWARDED = "forwarded"


def main() -> None:
    """Run one transaction."""
    servers, namespace, topic, database, name = sys.argv[1:]
    wanted = Stage(name)
    shop = make_shop(create_engine(database))

    def reach(stage: Stage) -> None:
        if stage is wanted:
            sys.stdout.write(f"at {stage.value}\n")
            sys.stdout.flush()
            sys.stdin.readline()

    with TransactionalProducer(
        bootstrap_servers=servers, namespace=namespace, group=name, barrier=shop.barrier
    ) as producer:
        reach(Stage.BEFORE_HALF)
        try:
            with producer.transaction(name) as tx:
                tx.send(topic, key=name, value=b"paid")
                if wanted is Stage.HALF_WRITTEN:
                    preparing = threading.Thread(target=tx.prepare)
                    preparing.start()
                    reach(Stage.HALF_WRITTEN)
                    preparing.join()
                else:
                    tx.prepare()
                reach(Stage.HALF_ACKNOWLEDGED)
                with Session(shop.engine) as session, session.begin():
                    tx.join(session)
                    session.add(Order(txn_id=name))
                    session.flush()
                    reach(Stage.LOCAL_BEGUN)
                reach(Stage.LOCAL_COMMITTED)
            reach(Stage.OP_WRITTEN)
            tx.result()
            reach(Stage.OP_ACKNOWLEDGED)
            reach(Stage.FORWARDED)
        except TxLayerError as exc:
            # A check-back came first, or a broker is away: what the barrier says is what counts.
            sys.stderr.write(f"{name}: {exc}\n")
        sys.stdin.read()  # answer check-backs until nobody needs it any more


if __name__ == "__main__":
    main()
