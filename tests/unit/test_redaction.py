"""Command lines without secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakranks.observe.redaction import redact


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("x --hf-token abc --lr 1", "x --hf-token *** --lr 1"),
        ("x --hf-token=abc", "x --hf-token=***"),
        ("API_KEY=abc x", "API_KEY=*** x"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"),
        ("x +wandb.key=abc", "x +wandb.key=***"),
        ("x --apiKey abc", "x --apiKey ***"),
        ("x --password -abc", "x --password ***"),
        ("x --db-passwd abc --credentials abc", "x --db-passwd *** --credentials ***"),
        ("x --auth --verbose", "x --auth --verbose"),
        ("x https://me:abc@host/x", "x https://***@host/x"),
        ("x https://abc@host/x", "x https://***@host/x"),
        ("x --remote=ssh://git@host/x", "x --remote=ssh://git@host/x"),
        ("x hf_abcdefghijklmnopqrstuv", "x ***"),
        ("x --tokenizer gpt2 --max-tokens 5 --author me", "x --tokenizer gpt2 --max-tokens 5 --author me"),
        (
            "python -m torch.distributed.run --nproc-per-node 8",
            "python -m torch.distributed.run --nproc-per-node 8",
        ),
    ],
)
def test_redact(command: str, shown: str) -> None:
    assert " ".join(redact(command.split(" "))) == shown


@pytest.mark.parametrize("piece", ["a=", "(a=", "a 'b=", "--a=b "])
def test_values_within_values_without_end(piece: str) -> None:
    word = piece * 20_000
    assert redact([word]) == (word,)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("export HF_TOKEN=abc; python x.py", "export HF_TOKEN=***; python x.py"),
        ("python x.py --api-key 'a b' --lr 3", "python x.py --api-key *** --lr 3"),
        ('{"api_key": "abc", "lr": 3}', '{"api_key": ***, "lr": 3}'),
        ('{"api_key":"abc"}', '{"api_key":***}'),
        ("Authorization: Bearer abcdef", "Authorization: ***"),
        ("SECRET=with spaces in it", "SECRET=***"),
        ("login(token='abcdef')", "login(token=***)"),
        ("-oSetEnv=HF_TOKEN=abcdef", "-oSetEnv=HF_TOKEN=***"),
        ("-o SetEnv=HF_TOKEN=abcdef", "-o SetEnv=HF_TOKEN=***"),
    ],
)
def test_redact_inside_one_word(word: str, shown: str) -> None:
    assert redact(["bash", "-c", word])[2] == shown


@given(
    st.sampled_from(["--hf-token", "--api_key", "--secret", "--password", "--aws.auth", "--db-credential"]),
    st.text(st.characters(categories=["L", "N"]), min_size=1).map(lambda text: "S" + text),
    st.booleans(),
    st.lists(st.sampled_from(["train.py", "--lr", "0.1", "-v", "--tokenizer", "gpt2"])),
)
def test_a_secret_never_gets_through(name: str, secret: str, joined: bool, others: list[str]) -> None:
    given_words = [f"{name}={secret}"] if joined else [name, secret]
    shown = redact([*others, *given_words, *others])
    assert secret not in shown and f"{name}={secret}" not in shown
    assert shown == (*others, *([f"{name}=***"] if joined else [name, "***"]), *others)


@given(st.lists(st.text()))
def test_redact_takes_anything(words: list[str]) -> None:
    assert len(redact(words)) == len(words)
