"""Claims from the queue on Postgres, while others change what is claimed."""

import asyncio

from sqlalchemy import text
from support.store import VERSIONS, new_run

from orchestrator.runs.store import Limits, Queue, RunRows, open_database

HOLD = text("SELECT run_id FROM codemend_runs WHERE run_id = :run_id FOR UPDATE")
END = text("UPDATE codemend_runs SET state = 'CANCELLED' WHERE run_id = :run_id")
BLOCKED = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE%'")


async def blocked(database):
    """Returns once somebody's UPDATE waits for another's transaction; each transaction sees it anew."""
    waits = 0
    while not waits:
        await asyncio.sleep(0.01)
        async with database.read() as connection:
            waits = (await connection.execute(BLOCKED)).scalar_one()


async def test_a_run_that_ends_while_it_is_claimed_costs_no_other_its_turn(postgres_url):
    async with open_database(postgres_url) as one, open_database(postgres_url) as other:
        ending, waiting = [(await RunRows(one).create(new_run()))[0].run_id for _ in range(2)]
        async with other.write() as connection:
            await connection.execute(HOLD, {"run_id": ending})
            claim = asyncio.create_task(Queue(one, Limits()).claim("x/1", VERSIONS, 2))

            async with asyncio.timeout(10):
                await blocked(one)
            await connection.execute(END, {"run_id": ending})
        assert [record.run_id for record in await claim] == [waiting]
