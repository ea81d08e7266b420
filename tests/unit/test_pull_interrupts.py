"""An interrupt (Ctrl-C) anywhere in a program's own wait for a message: it never stops its consumer."""

import threading
from contextlib import suppress
from functools import partial

from tests.unit.test_producer_interrupts import Interrupted
from txlayer.consumer.pull import Desk

PATIENCE_S = 10


def test_an_interrupt_while_a_program_waits_for_a_message_leaves_nothing_locked() -> None:
    number = 0
    while True:
        number += 1
        desk, interrupted = Desk(), Interrupted(number)
        with suppress(KeyboardInterrupt, RuntimeError):
            interrupted(partial(desk.take, 0.002, has_ended=lambda: False))

        consumer = threading.Thread(target=desk.give_back, daemon=True)
        consumer.start()
        consumer.join(PATIENCE_S)
        assert not consumer.is_alive(), number
        if interrupted.left > 0:
            break

    assert number > 3
