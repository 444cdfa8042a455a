"""What the Bot API takes as a text with entities, as strictly as its page and its open client library say.

Sources: https://core.telegram.org/bots/api#messageentity and #formatting-options; tdlib `MessageEntity.cpp` for what it
does to a text (trimming, entities over white space).
"""

from typing import Final

from services.delivery.targets.telegram.entities import Entity

KNOWN: Final = {"bold", "italic", "underline", "strikethrough", "spoiler", "blockquote", "code", "pre", "text_link"}
CODE: Final = {"code", "pre"}


def check_message(text: str, entities: tuple[Entity, ...], limit: int = 4096) -> None:
    units = text.encode("utf-16-le")
    size = len(units) // 2
    assert text.strip(), "the text is empty"
    assert size <= limit, "the text is too long"
    assert len(entities) <= 100, "the entities beyond 100 are ignored"
    borders = _borders(text)
    for entity in entities:
        _check_entity(entity, units, borders)
    assert [(e.offset, -e.length) for e in entities] == sorted((e.offset, -e.length) for e in entities), "out of order"
    _check_nesting(entities)
    first = entities[0].offset if entities else size
    head = text[: borders.index(first)]
    assert text == text.rstrip(), "the end is trimmed"
    assert not head[:1].isspace(), "the beginning is trimmed up to the first entity"


def styled(text: str, entity: Entity) -> str:
    return text.encode("utf-16-le")[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le")


def _borders(text: str) -> list[int]:
    borders = [0]
    for char in text:
        borders.append(borders[-1] + (2 if char > "\uffff" else 1))
    return borders


def _check_entity(entity: Entity, units: bytes, borders: list[int]) -> None:
    assert entity.type in KNOWN
    assert entity.offset >= 0, "out of range"
    assert entity.length > 0, "empty"
    assert 2 * (entity.offset + entity.length) <= len(units), "out of range"
    assert {entity.offset, entity.offset + entity.length} <= set(borders), "within a surrogate pair"
    content = units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le")
    assert content == content.rstrip(), "white space at its end is cut off"
    assert bool(entity.url) == (entity.type == "text_link")
    assert entity.type != "text_link" or entity.url.lower().startswith(("http://", "https://", "mailto:")), "mentions"
    assert not entity.language or entity.type == "pre"


def _check_nesting(entities: tuple[Entity, ...]) -> None:
    around: list[Entity] = []
    for entity in entities:
        while around and around[-1].offset + around[-1].length <= entity.offset:
            around.pop()
        types = {outer.type for outer in around}
        if around:
            outer = around[-1]
            assert entity.offset + entity.length <= outer.offset + outer.length, "entities cross"
        assert entity.type not in types, "within its like"
        assert not types & CODE, "code holds nothing"
        assert entity.type not in CODE or types <= {"blockquote"}, "code stands in a quote at most"
        assert entity.type != "blockquote" or "text_link" not in types
        around.append(entity)
