"""A card of a study with a transcript key that tests know."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from runtime.key_files import write_key_file
from server.study_file import load
from wire.authority_statements import Card, sign_card
from wire.certificates import private_pem as pem


def authority_of(folder: Path) -> Ed25519PrivateKey:
    private = load_pem_private_key((folder / "authority" / "authority.key").read_bytes(), None)
    assert isinstance(private, Ed25519PrivateKey)
    return private


def put_card(folder: Path, key: Ed25519PrivateKey) -> None:
    """Write the card, signed by the study's authority, and the private half of the key that it names."""
    configuration = load(folder)
    table, private = configuration.coordinator, authority_of(folder)
    public = private.public_key().public_bytes_raw()
    one = Card(
        configuration.study.name,
        public,
        table.client_ca.read_bytes(),
        key.public_key().public_bytes_raw(),
        "localhost:8443",
    )
    for path in (table.card, table.transcript_key):
        path.unlink(missing_ok=True)
    table.card.write_bytes(sign_card(one, private))
    write_key_file(table.transcript_key, pem(key))
