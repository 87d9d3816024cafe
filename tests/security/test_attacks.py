"""The battery: every attack on every kind of cell is contained, and leaves nothing behind."""

import pytest

from security.attacks import ALL
from security.battery import LAST_OF_GROUP, honest_job_passes, run


def test_the_battery_is_large_and_no_attack_is_in_it_twice():
    assert len(ALL) >= 100
    assert len({attack.name for attack in ALL}) == len(ALL)


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
async def test_an_attack_is_contained_and_leaves_nothing_for_honest_jobs(running, attack):
    verdict = await run(attack, running)
    assert verdict.finding.contained, verdict.finding.how
    if attack.name == LAST_OF_GROUP[attack.group]:
        assert await honest_job_passes(running)
        assert await running.leftovers() == {}
