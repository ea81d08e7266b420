"""When a transactional producer is replaced by a successor with its id, and which errors do that. The one place of these rules.

The successor has a new epoch: the broker fences every request of the old one. A producer is replaced before its next Kafka
transaction begins, if

* it may have stale requests (`may_have_stale_requests`);
* it was idle for `IDLE_S_MAX`. Only `KafkaTransactions` does this: a coordinator stores offsets all the time;
* it has larger batches than a topic takes by now. Only the coordinator's `Publisher` does this.

One error replaces it within its Kafka transaction, which is then written again: `error_replaces_producer`. Only the `Publisher`
asks this. After any other error a producer is given up, with its name: the outcome of its Kafka transaction is unknown. A coordinator builds its state again from
the stored offsets. A consumer takes its queues over again; if no offset was sent, it only takes a writer of another name
(`Assignments.replace_writer`). Producers of half and op records are not transactional: after a fatal error (`FencedError`) the
user makes a new one, and `run_responder` does so itself.
"""

from txlayer.errors import FencedError, MemberFencedError, TxLayerError

RECYCLE_AFTER_S = 0.07
"""0.7 x retry.backoff.ms: a slower send_offsets or commit may have been sent twice."""

IDLE_S_MAX = 3_600.0
"""An idle producer is replaced after this: brokers forget its id after a day, and then refuse its records."""


def may_have_stale_requests(*, offsets_s: float, commit_s: float, recycle_after_s: float) -> bool:
    """True if send_offsets or commit took so long that it may have been sent twice, and the copy is still under way.

    librdkafka silently re-sends EndTxn and TxnOffsetCommit, and a late one may land in a later Kafka transaction of the same
    producer (KAFKA-17754). A re-send takes at least 0.8 of `retry.backoff.ms`.
    """
    return max(offsets_s, commit_s) > recycle_after_s


def error_replaces_producer(error: TxLayerError, *, idle_s: float, timeout_s: float) -> bool:
    """True if a successor may write the same again: a producer that was idle for `idle_s` was fenced before its commit.

    A late request opens a Kafka transaction that no client ends; the broker gives that up after its time-out, and fences. It is no sign
    of a second owner, which the group would know: an error of the group (`MemberFencedError`) is another thing.
    """
    return isinstance(error, FencedError) and not isinstance(error, MemberFencedError) and idle_s >= timeout_s
