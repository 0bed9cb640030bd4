"""Corpus, vocabulary and batches: what the model is trained on and measured with."""

import numpy as np
import pytest

from specjax.training.batches import Batches, consecutive_blocks
from specjax.training.corpus import HELD_OUT, Corpus, Document, is_held_out, is_source, standard_library
from specjax.training.vocabulary import END_OF_TEXT, encode_documents, train_vocabulary


@pytest.fixture(scope="module")
def corpus():
    return standard_library()


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return train_vocabulary([document.text for document in corpus.train[:60]], 600)


def test_held_out_files_are_disjoint_from_training(corpus):
    train = {document.path for document in corpus.train}
    held_out = {document.path for document in corpus.held_out}
    assert not train & held_out
    assert {document.text for document in corpus.train}.isdisjoint(document.text for document in corpus.held_out)
    assert {"textwrap.py", "calendar.py", "heapq.py"} <= held_out
    assert held_out >= train.union(held_out) & HELD_OUT


def test_held_out_share_is_a_few_percent(corpus):
    provenance = corpus.provenance
    share = provenance.held_out_bytes / (provenance.train_bytes + provenance.held_out_bytes)
    assert 0.01 < share < 0.08
    assert provenance.train_files == len(corpus.train)


def test_the_hash_of_a_corpus_covers_texts_and_split():
    one, two = Document("a.py", "x = 1\n"), Document("b.py", "y = 2\n")
    corpora = [
        Corpus((one,), (two,)),
        Corpus((one, two), ()),
        Corpus((one,), (Document("b.py", "y = 3\n"),)),
        Corpus((one,), (Document("c.py", "y = 2\n"),)),
    ]
    assert len({corpus.provenance.sha256 for corpus in corpora}) == len(corpora)


@pytest.mark.parametrize(
    "path",
    [
        "test/test_os.py",
        "idlelib/idle_test/test_run.py",
        "encodings/cp1252.py",
        "site-packages/x/y.py",
        "html/entities.py",
    ],
)
def test_tests_tables_and_installed_packages_are_no_source(path):
    assert not is_source(path)


def test_the_split_is_a_function_of_the_path():
    assert is_source("json/encoder.py")
    assert is_held_out("json/encoder.py")
    assert not is_held_out("json/decoder.py")


def test_vocabulary_round_trips_all_bytes(tokenizer):
    text = "".join(map(chr, range(0x250))) + "\u4f60\U0001f40d\ufffd\t\r\n\n    x = 1\n" + END_OF_TEXT[:-1]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    single = {token for token in tokenizer.get_vocab() if len(token) == 1}
    assert len(single) == 256


def test_indentation_is_one_token(tokenizer):
    tokens = tokenizer.encode("def f(self):\n        return self\n").tokens
    assert tokens[-4:-1] == ["\u0120" * 7, "\u0120return", "\u0120self"]


def test_every_document_ends_with_the_end_of_text(tokenizer):
    end = tokenizer.token_to_id(END_OF_TEXT)
    for ids in encode_documents(tokenizer, [Document("a.py", "x = 1\n"), Document("b.py", END_OF_TEXT)]):
        assert ids[-1] == end
        assert ids.dtype == np.int32


def test_vocabulary_needs_room_and_text(corpus):
    with pytest.raises(ValueError, match="room for 256 bytes"):
        train_vocabulary(["x"], 200)
    with pytest.raises(ValueError, match="yield only"):
        train_vocabulary(["x = 1"], 4096)


DOCUMENTS = [np.arange(start, start + size, dtype=np.int32) for start, size in ((0, 50), (100, 33), (200, 75))]


def test_batches_are_a_pure_function_of_seed_and_step():
    one, two = Batches(DOCUMENTS, 2, 8, seed=3), Batches(DOCUMENTS, 2, 8, seed=3)
    forwards = [one[step] for step in range(25)]
    for step in reversed(range(25)):
        np.testing.assert_array_equal(two[step], forwards[step])
    assert any((Batches(DOCUMENTS, 2, 8, seed=4)[step] != forwards[step]).any() for step in range(5))


def test_an_epoch_sees_no_token_twice_and_epochs_differ():
    batches = Batches(DOCUMENTS, 2, 8, seed=0)
    n = batches.steps_per_epoch
    epochs = [np.stack([batches[epoch * n + i] for i in range(n)]) for epoch in (0, 1)]
    for epoch in epochs:
        assert len(np.unique(epoch)) == epoch.size == n * 16
    assert (epochs[0] != epochs[1]).any()


def test_too_little_text_for_a_batch_is_an_error():
    with pytest.raises(ValueError, match="fewer than one batch"):
        Batches(DOCUMENTS, 4, 512, seed=0)


def test_too_little_held_out_text_for_a_batch_is_an_error():
    with pytest.raises(ValueError, match="158 tokens, fewer than one batch of 4 x 512"):
        consecutive_blocks(DOCUMENTS, 4, 512)


def test_evaluation_blocks_keep_the_order_of_the_text():
    blocks = consecutive_blocks(DOCUMENTS, 2, 8)
    np.testing.assert_array_equal(blocks.ravel(), np.concatenate(DOCUMENTS)[: blocks.size])
