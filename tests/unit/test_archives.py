"""Archives: what is read out of them, what is refused, and what is written, held against tarfile."""

import gzip
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sessions import archive, member

from sandbox_service import archives
from sandbox_service.archives import ArchiveError
from sandbox_service.domain import Entry, EntryKind

FILE, DIRECTORY, LINK = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.LINK
LIMIT = 1024 * 1024


def read(data, limit=LIMIT, existing=lambda _: None):
    return archives.read(io.BytesIO(data), limit, existing)


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=60).filter(
    lambda name: name not in {".", ".."} and len(name.encode()) <= 255
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
ENTRIES = st.one_of(
    st.builds(
        lambda path, content, x: Entry(path.encode(), FILE, content, x), PATHS, st.binary(max_size=2000), st.booleans()
    ),
    st.builds(lambda path: Entry(path.encode(), DIRECTORY), PATHS),
    st.builds(lambda path, to: Entry(path.encode(), LINK, to.encode()), PATHS, PATHS),
)
MANY = st.lists(ENTRIES, max_size=8, unique_by=lambda entry: entry.path)


@settings(deadline=None)
@given(MANY)
def test_what_is_written_is_read_again(entries):
    assert read(b"".join(archives.write(entries))) == entries


@settings(deadline=None)
@given(MANY)
def test_what_is_written_is_what_tarfile_reads(entries):
    with tarfile.open(fileobj=io.BytesIO(b"".join(archives.write(entries)))) as tar:
        found = [
            (one.name.encode(), one.linkname.encode() if one.issym() else one.isfile() and tar.extractfile(one).read())
            for one in tar
        ]
    assert found == [(one.path, one.kind is not DIRECTORY and one.content) for one in entries]


@settings(deadline=None)
@given(MANY, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), st.booleans())
def test_what_tarfile_writes_is_read(entries, form, packed):
    kinds = {FILE: tarfile.REGTYPE, DIRECTORY: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE}
    members = [
        member(
            one.path.decode(),
            content=one.content if one.kind is FILE else b"",
            type=kinds[one.kind],
            linkname=one.content.decode() if one.kind is LINK else "",
            mode=0o755 if one.executable else 0o644,
        )
        for one in entries
    ]
    data = archive(*members, form=form)
    assert read(gzip.compress(data) if packed else data) == entries


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=3000), st.booleans())
def test_bytes_of_no_archive_are_refused_and_nothing_else_happens(data, is_packed):
    sent = gzip.compress(data) if is_packed else data
    try:
        assert read(sent) == []
    except ArchiveError:
        return
    assert not data[:512].strip(b"\0"), "only an end mark says that there is nothing"


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_archive_is_refused_or_read_as_some_other_archive(data):
    whole = bytearray(archive(member("a" * 150, content=b"x" * 700), member("l", type=tarfile.SYMTYPE, linkname="a")))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, 2500))] = data.draw(st.integers(0, 255))
    try:
        entries = read(bytes(whole))
    except ArchiveError:
        return
    assert all(b".." not in entry.path.split(b"/") and not entry.path.startswith(b"/") for entry in entries)


def test_a_cut_archive_is_refused_wherever_it_is_cut():
    whole = archive(member("a" * 150, content=b"x" * 700), member("b", content=b"y"))
    end = whole.rindex(b"y" + bytes(511)) + 512
    assert [entry.path for entry in read(whole[: end + 512])] == [b"a" * 150, b"b"]
    for length in range(0, end + 512, 7):
        with pytest.raises(ArchiveError):
            read(whole[:length])


def test_files_over_the_limit_are_refused_before_they_are_read():
    read(archive(member("a", content=bytes(LIMIT - 4096)), member("b", content=b"x")))
    with pytest.raises(ArchiveError, match="more than"):
        read(archive(member("a", content=bytes(LIMIT - 4096)), member("b", content=b"x"), member("c", content=b"")))
    claimed = tarfile.TarInfo("a")
    claimed.size = 1 << 40
    with pytest.raises(ArchiveError, match="larger"):
        read(claimed.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    claimed.size = -(1 << 30)
    with pytest.raises(ArchiveError):
        read(claimed.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


def test_a_gzip_bomb_is_refused_after_a_bound_of_work():
    bomb = gzip.compress(bytes(20 * LIMIT))  # an archive's end, and 20 MiB after it that nobody looks at
    assert read(bomb) == []
    with pytest.raises(ArchiveError, match="larger"):
        read(gzip.compress(archive(member("a", content=bytes(20 * LIMIT)))))


def test_more_links_than_a_session_may_bring_are_refused():
    links = [member(f"l{number}", type=tarfile.SYMTYPE, linkname="x") for number in range(4097)]
    with pytest.raises(ArchiveError, match="links"):
        read(archive(*links), limit=64 * LIMIT)


def test_hard_links_become_files_of_the_archive_or_of_the_workspace():
    data = archive(
        member("a", content=b"mine", mode=0o755),
        member("b", type=tarfile.LNKTYPE, linkname="./a"),
        member("c", type=tarfile.LNKTYPE, linkname="old"),
    )
    old = Entry(b"old", FILE, b"there")
    found = read(data, existing={b"old": old}.get)
    assert found[1:] == [Entry(b"b", FILE, b"mine", executable=True), Entry(b"c", FILE, b"there")]


@pytest.mark.parametrize("key", ["path", "linkpath", "size"])
def test_a_global_header_may_not_rename_or_resize_members(key):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, pax_headers={key: "1"}) as tar:
        tar.addfile(*member("a")[:1])
    with pytest.raises(ArchiveError, match="global"):
        read(target.getvalue())


def test_a_global_comment_is_no_matter():
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "c0ffee"}) as tar:
        tar.addfile(*member("a")[:1])
    assert [entry.path for entry in read(target.getvalue())] == [b"a"]


def test_a_sparse_member_is_refused_in_both_of_its_forms():
    info = tarfile.TarInfo("s")
    info.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(ArchiveError, match="sparse"):
        read(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ArchiveError, match="sparse"):
        read(archive(member("s", pax_headers={"GNU.sparse.major": "1"})))


def records(count):
    """An extended header of so many records."""
    info = tarfile.TarInfo("pax")
    info.type, body = tarfile.XHDTYPE, b"6 a=b\n" * count
    info.size = len(body)
    return info.tobuf() + body + bytes(-len(body) % 512)


@pytest.mark.parametrize("junk", [records(10_000), member(".", type=tarfile.DIRTYPE)[0].tobuf()])
def test_an_archive_of_headers_that_pack_to_nothing_is_refused_after_a_bound_of_work(junk):
    count = 2 * LIMIT // len(junk)
    with pytest.raises(ArchiveError, match="more headers"):
        read(gzip.compress(junk * count + archive(member("a"))))


def test_every_page_of_a_session_may_have_a_member_with_long_names():
    deep = "/".join(["d" * 200] * 4)
    members = [member(f"{deep}/{number}", pax_headers={"mtime": "1.5", "comment": "c"}) for number in range(250)]
    assert len(read(archive(*members))) == 250


def test_what_a_packed_archive_takes_in_memory_is_known_before_it_is_read():
    plain = archive(member("a", content=bytes(200_000)))
    packed = io.BytesIO(gzip.compress(plain))
    assert archives.unpacked_bytes(packed, LIMIT) == len(plain)
    assert [entry.path for entry in archives.read(packed, LIMIT)] == [b"a"]
    assert archives.unpacked_bytes(io.BytesIO(plain), LIMIT) == 0
    with pytest.raises(ArchiveError, match="larger"):
        archives.unpacked_bytes(io.BytesIO(gzip.compress(bytes(4 * LIMIT))), LIMIT)
    with pytest.raises(ArchiveError, match="damaged"):
        archives.unpacked_bytes(io.BytesIO(gzip.compress(plain)[:-20]), LIMIT)
