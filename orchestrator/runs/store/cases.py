"""The rows of regression cases: one a name and tenant, whole in itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from orchestrator.errors import CaseNameTaken, CaseNotFound
from orchestrator.runs.store.database import Database
from orchestrator.runs.store.schema import CASES
from orchestrator.runs.store.whole import whole


@dataclass(frozen=True, slots=True)
class CaseRow:
    """A case.

    Attributes:
        expectation: what is expected, as JSON.
        digest: of the body, equal for equal ones.
        body: request, tape and recorded states, as JSON; empty in lists.
    """

    case_id: str
    tenant: str
    name: str
    run_id: str
    create_time: datetime
    workflow: str
    graph_version: int
    tape_entries: int
    expectation: str
    digest: str
    body: bytes = b""


class CaseRows:
    """Reads and writes cases. All methods raise StoreUnavailable where the database does not answer.

    Args:
        database: where they are.
        replaces: whether what is added takes the place of a case of the same name, which keeps its id.
    """

    def __init__(self, database: Database, *, replaces: bool = False) -> None:
        self._database = database
        self._replaces = replaces

    @whole
    async def add(self, rows: Sequence[CaseRow]) -> Sequence[CaseRow]:
        """Adds all of them or none; gives back those that were not there before.

        Raises:
            CaseNameTaken: a case of another content has the name, and is not to be replaced.
        """
        added: list[CaseRow] = []
        try:
            async with self._database.write() as connection:
                for row in rows:
                    same = (CASES.c.tenant == row.tenant) & (CASES.c.name == row.name)
                    known = (await connection.execute(select(CASES.c.digest).where(same))).scalar_one_or_none()
                    if known is None:
                        await connection.execute(insert(CASES).values(_values(row)))
                        added.append(row)
                    elif known != row.digest and self._replaces:
                        await connection.execute(update(CASES).where(same).values(_content(row)))
                        added.append(row)
                    elif known != row.digest:
                        raise CaseNameTaken(f"a case with another content has the name {row.name!r}")
        except IntegrityError as error:
            raise CaseNameTaken("a case of that name was added at the same time") from error
        return added

    @whole
    async def get(self, tenant: str, case_id: str) -> CaseRow:
        """The case with this id or name, whole. Raises CaseNotFound."""
        query = select(CASES).where(CASES.c.tenant == tenant, or_(CASES.c.case_id == case_id, CASES.c.name == case_id))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        if row is None:
            raise CaseNotFound(case_id)
        return CaseRow(**{**row, "run_id": row["run_id"] or ""})

    @whole
    async def list(self, tenant: str, after: str, limit: int) -> Sequence[CaseRow]:
        """A page of cases in order of name, without their bodies."""
        columns = [column for column in CASES.c if column.name != "body"]
        query = select(*columns).where(CASES.c.tenant == tenant, CASES.c.name > after).order_by(CASES.c.name)
        async with self._database.read() as connection:
            rows = (await connection.execute(query.limit(limit))).mappings().all()
        return [CaseRow(**{**row, "run_id": row["run_id"] or ""}) for row in rows]

    @whole
    async def delete(self, tenant: str, case_id: str) -> None:
        """Deletes the case with this id or name. Raises CaseNotFound."""
        same = (CASES.c.tenant == tenant) & or_(CASES.c.case_id == case_id, CASES.c.name == case_id)
        async with self._database.write() as connection:
            if (await connection.execute(delete(CASES).where(same))).rowcount == 0:
                raise CaseNotFound(case_id)


def _values(row: CaseRow) -> dict[str, object]:
    return {column.name: getattr(row, column.name) for column in CASES.c}


def _content(row: CaseRow) -> dict[str, object]:
    """What a replaced case has of the new one: all but its id."""
    return {name: value for name, value in _values(row).items() if name != "case_id"}
