"""The state diagram of the protocol page is drawn from the transition table."""

from tests.support.protocol_page import page
from txlayer.core.ledger.transitions import SETTLED, TRANSITIONS, TxnState


def drawn_from_the_table() -> str:
    """The diagram that the table says; transitions that stay in their state are left out."""
    arrows: dict[tuple[TxnState, TxnState], list[str]] = {}
    for (state, kind), (following, _) in TRANSITIONS.items():
        if following is not state:
            arrows.setdefault((state, following), []).append(kind.value)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {name(TxnState.OPEN)}"]
    lines += [f"    {name(a)} --> {name(b)}: {' / '.join(kinds)}" for (a, b), kinds in arrows.items()]
    lines += [f"    {name(state)} --> [*]" for state in TxnState if state in SETTLED]
    return "\n".join([*lines, "```"])


def name(state: TxnState) -> str:
    """A state's name in the diagram's language, which knows no hyphen."""
    return state.value.replace("-", "_")


def test_the_state_diagram_is_the_transition_table() -> None:
    text = page()
    diagram = text[text.index("```mermaid") :].rstrip()

    assert drawn_from_the_table() == diagram
