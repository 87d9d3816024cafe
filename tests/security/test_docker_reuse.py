"""Docker cells under the policies of reuse that the battery's own service does not have: `job` and `session`.

No container is made ahead here, so that whose container is whose can be seen from outside. Of the attacks those are
chosen that aim at another job, at the container itself, or at the guest's protocol.
"""

import json
from contextlib import AsyncExitStack

import pytest
from support import engine, looking
from support.kinds import KINDS, MissingError
from support.sessions import Sessions
from support.waiting import until

from security.attacks import ALL
from security.battery import honest_job_passes, run

GONE_SECONDS = 20
JOBS = 3
NAMES = (
    "workspace_of_a_neighbour",
    "memory_and_environment_of_a_neighbour",
    "kills_the_neighbour",
    "loopback_of_a_neighbour",
    "a_daemon_that_waits_for_the_next_job",
    "fork_bomb_that_goes_on",
    "kills_process_1",
    "a_chain_of_daemons",
    "disk_by_many_empty_files",
    "forged_results_on_every_descriptor",
    "a_million_small_frames",
    "closed_channels_and_an_early_end",
)
BETWEEN_JOBS = ("leftovers_of_an_earlier_job", "a_changed_interpreter_for_the_next_job")
"""What an earlier job leaves in the workspace is there by right where both are of one session."""
BY_JOB = (*NAMES[:6], "forged_results_on_every_descriptor", *BETWEEN_JOBS)
BY_NAME = {attack.name: attack for attack in ALL}
LEAVE = """
import os
for place in '/work', '/tmp', '/dev/shm', '/var/tmp', '/home/job': open(f'{place}/kept', 'w').write('secret')
os.environ['KEPT'] = '1'"""
LOOK = f"{looking.ATTEMPT}\nfound = {{}}\n{looking.FIND_KEPT}\nfound['variable'] = 'KEPT' in os.environ"
LOOK += "\nprint(json.dumps(found))"
HOLD = "import time\nprint('up', flush=True)\ntime.sleep(1000)"


@pytest.fixture(scope="module")
async def by_job(require):
    """A service that gives each job a container of its own."""
    async with AsyncExitStack() as stack:
        yield await _started(stack, require, "job")


@pytest.fixture(scope="module")
async def by_session(require):
    """A service that keeps a session's container for its next job."""
    async with AsyncExitStack() as stack:
        yield await _started(stack, require, "session")


async def _started(stack, require, reuse):
    try:
        started = KINDS["docker"](SANDBOX_DOCKER_REUSE=reuse, SANDBOX_DOCKER_POOL="0")
        return await stack.enter_async_context(started)
    except MissingError as error:
        require(False, str(error))


@pytest.mark.parametrize("name", BY_JOB)
async def test_an_attack_is_contained_where_each_job_has_its_own_container(by_job, name):
    verdict = await run(BY_NAME[name], by_job)
    assert verdict.finding.contained, verdict.finding.how
    assert await by_job.leftovers(GONE_SECONDS) == {}


async def test_honest_jobs_pass_beside_attacked_containers(by_job):
    await run(BY_NAME["fork_bomb"], by_job)
    assert await honest_job_passes(by_job)


async def test_a_second_job_never_gets_the_container_of_the_first(by_job):
    seen = []
    for _ in range(JOBS):
        await until(lambda: not engine.containers_of(by_job.sandbox.pid), GONE_SECONDS)
        call = by_job.sandbox.stream(HOLD)
        assert (await call.read()).stdout_chunk == b"up\n"
        seen += engine.containers_of(by_job.sandbox.pid).values()
        call.cancel()
    assert len(set(seen)) == len(seen) == JOBS


async def test_jobs_of_one_session_follow_each_other_in_one_container_and_find_nothing_but_its_files(by_session):
    async with Sessions(by_session.sandbox.stub).session(tenant="battery") as session:
        await session.python(LEAVE)
        first = engine.containers_of(by_session.sandbox.pid)
        assert len(first) == 1
        found = json.loads((await session.python(LOOK)).out)
        assert engine.containers_of(by_session.sandbox.pid) == first
    assert found.pop("/work") == ["kept"]
    assert not any(found.values()), found


async def test_a_session_never_gets_the_container_of_another_one_of_its_tenant(by_session):
    sessions = Sessions(by_session.sandbox.stub)
    async with sessions.session(tenant="battery") as one, sessions.session(tenant="battery") as other:
        await one.python(LEAVE)
        first = set(engine.containers_of(by_session.sandbox.pid).values())
        found = json.loads((await other.python(LOOK)).out)
        assert set(engine.containers_of(by_session.sandbox.pid).values()) > first
    assert not any(found.values()), found
    await until(lambda: not engine.containers_of(by_session.sandbox.pid), GONE_SECONDS)


async def test_attacks_of_one_session_are_contained_and_its_next_job_is_honest(by_session):
    async with Sessions(by_session.sandbox.stub).session(tenant="battery") as session:
        verdicts = [await run(BY_NAME[name], by_session, session.id) for name in NAMES]
        assert {v.attack.name: v.finding.how for v in verdicts if not v.finding.contained} == {}
        assert (await session.python("print(45)")).out == b"45\n"
    assert await honest_job_passes(by_session)
    assert await by_session.leftovers(GONE_SECONDS) == {}
