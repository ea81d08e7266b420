"""Every program on a page is Python, and has a test that runs it."""

from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, blocks

RUN_BY = {
    "README.md": "tests/docs/test_readme.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/howto/barrier.md": "tests/integration/sql/test_barrier_page.py",
    "docs/howto/check-back.md": "tests/docs/test_producer_pages.py",
    "docs/howto/consumers.md": "tests/docs/test_consumers_page.py",
    "docs/howto/django.md": "tests/docs/test_framework_pages.py",
    "docs/howto/errors.md": "tests/docs/test_producer_pages.py",
    "docs/howto/fastapi.md": "tests/docs/test_framework_pages.py",
    "docs/howto/faststream.md": "tests/docs/test_framework_pages.py",
    "docs/howto/from-outbox.md": "tests/docs/test_framework_pages.py",
    "docs/howto/from-rocketmq.md": "tests/docs/test_producer_pages.py",
    "docs/howto/inbox.md": "tests/docs/test_consumer_database_pages.py",
    "docs/howto/local-broker.md": "tests/docs/test_producer_pages.py",
    "docs/howto/locks.md": "tests/docs/test_consumer_database_pages.py",
    "docs/howto/memory-kafka.md": "tests/docs/test_memory_page.py",
    "docs/howto/metrics.md": "tests/docs/test_metrics_page.py",
    "docs/howto/personal-data.md": "tests/docs/test_framework_pages.py",
    "docs/howto/saga.md": "tests/docs/test_consumers_page.py",
    "docs/howto/scheduled-messages.md": "tests/docs/test_producer_pages.py",
    "docs/howto/settle-by-hand.md": "tests/docs/test_producer_pages.py",
    "docs/howto/spark-jobs.md": "tests/spark/test_jobs_page.py",
    "docs/howto/test-your-service.md": "tests/docs/test_testing_page.py",
    "docs/howto/tracing.md": "tests/docs/test_tracing_page.py",
}
"""Which test runs a page's programs."""


def test_every_page_with_a_program_has_the_test_that_runs_it() -> None:
    with_programs = {str(page.relative_to(ROOT)) for page in PAGES if blocks(page, "python")}

    assert with_programs == set(RUN_BY)
    assert [] == [file for file in RUN_BY.values() if not (ROOT / file).is_file()]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_every_program_is_python(page: Path) -> None:
    for number, program in enumerate(blocks(page, "python")):
        compile(program, f"{page}, program {number + 1}", "exec")
