import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import ragged

from fedpeft.batches.batch import batches, collate, evaluation_batch


def test_collate_orders_groups_and_pads():
    one, two = ragged([3, 5, 2]), ragged([4, 1], first=50)
    rows = [np.array([2, 0]), np.array([1])]
    batch = collate([one, two], rows, 7, "cpu", torch.float64)
    assert batch.groups == 2
    assert batch.input_ids.tolist() == [[210, 211, 7], [10, 11, 12], [150, 7, 7], [150, 7, 7]]
    assert batch.attention_mask.tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert batch.weights.tolist() == [1, 1, 1, 0]
    assert batch.labels.tolist() == [2, 0, 1, 1]
    assert batch.read.tolist() == [1, -1, 0, 0]
    whole = (batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.read, batch.labels)
    assert {tensor.dtype for tensor in whole} == {torch.int64}
    assert batch.weights.dtype == torch.float64


def test_collate_fills_an_empty_group_with_its_shortest_text():
    rows = [np.array([0]), np.array([])]
    batch = collate([ragged([2]), ragged([9, 1, 5])], rows, 0, "cpu", torch.float32)
    assert batch.input_ids.tolist() == [[10, 11], [110, 0]]
    assert batch.weights.tolist() == [1, 0]


def test_collate_gives_scores_the_dtype_asked_for():
    scored = ragged([2, 2], labels=np.array([0.5, 4.25]))
    for dtype in (torch.float32, torch.float64):
        batch = collate([scored], [np.array([1, 0])], 0, "cpu", dtype)
        assert batch.labels.dtype == batch.weights.dtype == dtype
        assert batch.labels.tolist() == [4.25, 0.5]


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 500), st.integers(1, 40), st.integers(0, 99), st.booleans())
def test_an_epoch_has_every_row_once(count, size, seed, shuffled):
    lengths = np.random.default_rng(seed).integers(1, 50, count)
    parts = batches(lengths, size, np.random.default_rng(seed) if shuffled else None)
    assert sorted(row for part in parts for row in part) == list(range(count))
    assert all(1 <= len(part) <= size for part in parts)
    assert len(parts) == -(-count // size)
    again = batches(lengths, size, np.random.default_rng(seed) if shuffled else None)
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]


def test_evaluation_passes_more_texts_at_once_on_a_gpu():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert evaluation_batch(np.array([10, 30]), cpu) == 64
    assert evaluation_batch(np.array([10, 30]), gpu) == (1 << 15) // 30
    assert evaluation_batch(np.array([2000]), gpu) == 64
    assert evaluation_batch(np.array([], np.int64), gpu) > 64


def test_evaluation_goes_in_order_of_length():
    parts = batches(np.array([5, 1, 4, 1, 2]), 2, None)
    assert [part.tolist() for part in parts] == [[1, 3], [4, 2], [0]]


def padding(lengths, parts):
    return sum(len(part) * lengths[part].max() for part in parts) / lengths.sum() - 1


def test_training_batches_pad_little_but_come_in_random_order():
    lengths = np.random.default_rng(0).geometric(0.05, 8000)
    random = np.random.default_rng(1)
    first, second = batches(lengths, 16, random), batches(lengths, 16, random)
    assert padding(lengths, first) < 0.1 < 1 < padding(lengths, np.arange(8000).reshape(-1, 16))
    means = np.array([lengths[part].mean() for part in first])
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.15
    assert not {tuple(part) for part in first} & {tuple(part) for part in second}


def test_a_small_client_sees_other_batches_every_epoch():
    lengths = np.arange(40)
    random = np.random.default_rng(0)
    first, second = batches(lengths, 8, random), batches(lengths, 8, random)
    assert not {frozenset(part) for part in first} & {frozenset(part) for part in second}
