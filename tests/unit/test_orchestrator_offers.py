"""What the sandbox offers: asked once for many, remembered for a while, and what a run is held against."""

import asyncio
from datetime import timedelta

import pytest

from orchestrator.api.checks import check_offered
from orchestrator.errors import InvalidRun, SandboxUnavailable
from orchestrator.offers import FRESH, PAUSE, Offers
from orchestrator.workflows.sandbox import Capabilities, Limits
from orchestrator.workflows.spec import CodegenTask, RunOptions, RunSpec

OFFERED = Capabilities(("base", "data"), Limits(wall_time=timedelta(minutes=10), memory_bytes=1024))


class Asked:
    """A sandbox that is asked, on a clock that the test turns."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.times = 0
        self.now = 100.0
        self.offers = Offers(self.ask, clock=lambda: self.now)

    async def ask(self):
        self.times += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_many_who_come_at_once_ask_once():
    asked = Asked(OFFERED)
    known = await asyncio.gather(*(asked.offers.known() for _ in range(20)))
    assert set(known) == {OFFERED}
    assert asked.times == 1


async def test_an_offer_is_asked_for_again_when_it_is_old():
    newer = Capabilities(("base",))
    asked = Asked(OFFERED, newer)
    assert await asked.offers.known() == OFFERED
    asked.now += FRESH.total_seconds() - 1
    assert await asked.offers.known() == OFFERED
    asked.now += 1
    assert await asked.offers.known() == newer


async def test_a_sandbox_that_does_not_answer_is_unknown_and_left_alone_for_a_moment():
    asked = Asked(OFFERED, SandboxUnavailable("down"), OFFERED)
    await asked.offers.known()
    asked.now += FRESH.total_seconds()
    assert await asked.offers.known() is None
    asked.now += PAUSE.total_seconds() - 1
    assert await asked.offers.known() is None
    assert asked.times == 2
    asked.now += 1
    assert await asked.offers.known() == OFFERED


def spec(environment="", **limits):
    return RunSpec("codegen", CodegenTask("t"), RunOptions(environment=environment, limits=Limits(**limits)))


@pytest.mark.parametrize(
    "run",
    [
        spec(),
        spec("data", wall_time=timedelta(minutes=10), memory_bytes=1024),
        spec(processes=10**6),  # the sandbox does not say
    ],
)
def test_a_run_within_the_offer_is_taken(run):
    check_offered(run, OFFERED)


def test_a_sandbox_that_names_no_environments_refuses_none():
    check_offered(spec("any"), Capabilities())


def test_all_that_is_beyond_the_offer_is_named_with_what_there_is():
    with pytest.raises(InvalidRun) as caught:
        check_offered(spec("gpu", wall_time=timedelta(minutes=11), memory_bytes=1025), OFFERED)
    assert dict(caught.value.violations) == {
        "spec.options.environment": "the sandbox has no 'gpu'; it has: base, data",
        "spec.options.limits.wall_time": "must be at most 600 s, as the sandbox allows, not 660 s",
        "spec.options.limits.memory_bytes": "must be at most 1024, as the sandbox allows, not 1025",
    }
