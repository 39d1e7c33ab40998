"""Files: exact round trips, torn lines, paths that are checked before any work."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_rollout_types import episodes, make

from toolstep.rollout import storage
from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.storage import (
    EpisodeLog,
    StorageError,
    check_file,
    check_folder,
    load_batch,
    read_episodes,
    save_batch,
    write_episodes,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(episodes, max_size=4))
def test_episodes_round_trip(tmp_path, trajectories):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, trajectories)
    assert [t.to_dict() for t in read_episodes(path)] == [t.to_dict() for t in trajectories]


def test_log_appends_one_whole_line_an_episode(tmp_path):
    path = tmp_path / "episodes.jsonl"
    with EpisodeLog(path) as log:
        log.write(make([((), (5,), 1.0)]))
        assert len(read_episodes(path)) == 1  # readable while the run goes on
    with EpisodeLog(path) as log:
        log.write(make([((), (6,), 1.0)]))
    assert [t.token_ids.tolist() for t in read_episodes(path)] == [[1, 2, 5], [1, 2, 6]]


def test_torn_last_line_is_left_out_wherever_it_tears(tmp_path):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [make([((), (5,), 1.0)]), make([((), (6,), 1.0)])])
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    for size in (0, 1, first - 1, first, first + 1, len(data) - 1, len(data)):
        path.write_bytes(data[:size])
        assert len(read_episodes(path)) == (size >= first) + (size == len(data)), size


def test_broken_line_is_named_by_its_number(tmp_path):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [make([((), (5,), 1.0)])] * 3)
    lines = path.read_bytes().split(b"\n")
    for bad in (lines[1][:-5], b"[]", b"", b"\xff", lines[1].replace(b"-0.52", b"0.52")):
        path.write_bytes(b"\n".join([lines[0], bad, *lines[2:]]))
        with pytest.raises(StorageError, match=r"episodes\.jsonl, line 2: no trajectory"):
            read_episodes(path)


def test_lone_surrogate_in_a_message_survives(tmp_path):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [make([((), (5,), 1.0)], messages=[{"role": "assistant", "content": "\ud800"}])])
    assert read_episodes(path)[0].messages[0]["content"] == "\ud800"


def test_batch_round_trip_without_pickle(tmp_path):
    batch = RolloutBatch.from_trajectories([make([((), (5,), r)], group_id=0) for r in (0.0, 1.0)])
    path = tmp_path / "batch.npz"
    save_batch(path, batch)
    again = load_batch(path)
    for name, value in batch.arrays().items():
        assert np.array_equal(again.arrays()[name], value)
        assert again.arrays()[name].dtype == value.dtype
    assert again.counts == batch.counts
    with np.load(path, allow_pickle=False) as file:
        assert all(file[k].dtype != object for k in file.files)
        arrays = dict(file)
    np.savez(path, x=np.zeros(2))
    with pytest.raises(StorageError, match="is no rollout batch"):
        load_batch(path)
    np.savez(path, **{**arrays, "rewards": np.zeros(3, np.float32)})
    with pytest.raises(StorageError, match=r"is no rollout batch: RolloutBatch.rewards must be float32\[2\]"):
        load_batch(path)


def test_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [make([((), (5,), 1.0)])])
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*episodes\.jsonl: the disk is full: free some space"):
        write_episodes(path, [])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_full_disk_while_logging_is_a_clear_error(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.symlink_to("/dev/full")
    log = EpisodeLog(path)
    with pytest.raises(StorageError, match="the disk is full"):
        log.write(make([((), (5,), 1.0)]))
    with pytest.raises(StorageError, match="the disk is full"):
        log.close()


def test_written_file_has_ordinary_permissions(tmp_path):
    write_episodes(tmp_path / "a.jsonl", [])
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a.jsonl").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_output_file_is_checked_beforehand(tmp_path):
    check_file(tmp_path / "new" / "folder" / "a.npz")
    assert (tmp_path / "new" / "folder").is_dir()
    assert not list((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "a.npz").write_text("")
    with pytest.raises(StorageError, match="exists; pass --overwrite"):
        check_file(tmp_path / "a.npz")
    check_file(tmp_path / "a.npz", overwrite=True)
    (tmp_path / "b.npz").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        check_file(tmp_path / "b.npz", overwrite=True)
    with pytest.raises(StorageError, match="cannot write to"):
        check_file(tmp_path / "a.npz" / "c.npz")


def test_output_folder_is_checked_beforehand(tmp_path):
    check_folder(tmp_path / "runs" / "1")
    (tmp_path / "runs" / "1" / "x").write_text("")
    with pytest.raises(StorageError, match="is not empty; pass --overwrite"):
        check_folder(tmp_path / "runs" / "1")
    check_folder(tmp_path / "runs" / "1", overwrite=True)
    with pytest.raises(StorageError, match="is a file"):
        check_folder(tmp_path / "runs" / "1" / "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission"):
        check_file(tmp_path / "a.npz")
