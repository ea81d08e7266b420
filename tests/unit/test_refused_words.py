"""Command lines that cannot be meant: each ends with 2 and says what is wrong, before a broker is asked."""

import os

import pytest

from tests.support.commands import run_txlayer

NOWHERE = "127.0.0.1:1"
"""No broker listens there: a command that asks ends with 3."""
WHY = ("--reason", "ticket 12: mended", "--operator", "zoe@desk")
QUEUE = "loyalty/orders/3"

TOPICS = [
    ("check --partitions 0", "--partitions"),
    ("check --no-such-option", "no-such-option"),
    ("check -X acks=0", "error: a promise rests on this setting"),
    ("check -b example.invalid:9092", "error: plain text to another machine"),
    ("apply -n a/b", "error: not a namespace: it names topics"),
    ("check --group loyalty", "--group and --topic go together"),
    ("check --topic orders", "--group and --topic go together"),
    (["check", "--group", "a b", "--topic", "orders"], "group"),
    ("check --group g --topic orders --partitions 3", "--partitions"),
    (["check", "--group", "g", "--topic", ""], "no topic can have this name"),
    (["check", "--group", "g", "--topic", os.fsdecode(b"\xff\xfe")], "no topic can have this name"),
    ("check --partitions 3000000000", "--partitions"),
    ("check --replication-factor 99999", "--replication-factor"),
]
TX = [
    ("list --state settled", "parked-committed"),
    (["list", "--older-than", "an hour"], "error: not a length of time"),
    ("list --limit 0", "--limit"),
    ("list --kept-aside --topic orders", "error: --kept-aside"),
    ("list --kept-aside --state open", "error: --kept-aside"),
    ("list --kept-aside --reason-code too-old", "error: --kept-aside"),
    ("list --watch --kept-aside", "leave out --kept-aside"),
    ("list --reason-code bad-luck", "checks-exhausted"),
    ("list --older-than soon", "error: not a length of time"),
    (["show", "two words"], "error: transaction id 'two words'"),
    (["show", "x" * 129], "error: transaction id"),
    ("show order-4711 --since yesterday", "error: not a time"),
    ("stats -b example.invalid:9092", "error: plain text to another machine"),
]
DLQ = [
    ("show 17", "names no dead letter"),
    ("show 0:17", "with one --topic"),
    ("list --key a --key-hex 61", "name the key once"),
    ("list --key-hex xy", "hex digits"),
    ("list --since yesterday", "--since"),
    (["list", "--topic", "a b"], "no topic can have this name"),
    (["drop", "--all", *WHY, "--rate", "inf"], "--rate takes a number"),
    (["replay", "--all", *WHY, "--rate", "nan"], "--rate takes a number"),
    ("replay --all", "say why with --reason"),
    (["replay", *WHY], "name dead letters, or say --all"),
    (["replay", "t/0:1", "--all", *WHY], "name dead letters, or say --all"),
    (["replay", "t/0:1", "--key", "k", *WHY], "filters choose among --all"),
    (["replay", "t/0:1", "--limit", "3", *WHY], "--limit goes with --all"),
    (["replay", "--all", "--again", *WHY], "--again goes with names"),
    (["replay", "--all", *WHY, "--request-id", "a b"], "--request-id takes"),
    (["replay", "--all", "--reason", "x" * 1_001], "at most 1,000 characters"),
    (["replay", "--all", "--reason", "x", "--operator", "a: b"], "--operator takes a name"),
]
LOCKS = [
    ("show orders", "GROUP/TOPIC/PARTITION"),
    (["release", QUEUE, "--reason", " "], "say why"),
    (["release", QUEUE, "--reason", "why", "--operator", "zoe: x"], "--operator"),
    (["release", QUEUE, "--reason", "x" * 5_000], "characters"),
]
CONSOLE = [
    ("--host 0.0.0.0", "other machines could read and change what browsers send"),
    ("--proxy 10.0.0.5", "every client of the network could use the console"),
    ("--allow-writes --second-person", "no second person"),
    ("--users missing", "cannot be read"),
]
CASES = [
    *(("topics", *case) for case in TOPICS),
    *(("tx", *case) for case in TX),
    *(("dlq", *case) for case in DLQ),
    *(("locks", *case) for case in LOCKS),
    *(("console", *case) for case in CONSOLE),
]
MORE = {"dlq": ["--group", "loyalty"], "console": ["--port", "0"]}
"""What these commands are given beside the words."""


@pytest.mark.parametrize(("command", "words", "said"), CASES)
def test_what_cannot_be_meant_ends_with_2_before_a_broker_is_asked(
    command: str, words: list[str] | str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLAYER_BOOTSTRAP_SERVERS", NOWHERE)
    words = words.split() if isinstance(words, str) else words

    code, out, err = run_txlayer(command, *words, *MORE.get(command, []), capsys=capsys)

    assert (2, "") == (code, out)
    assert said in err
