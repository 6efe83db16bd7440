"""Detect the encoding of text that is not UTF-8, once per file, among the encodings that its language uses."""

from hansa.data.importing.markup import needed
from hansa.data.importing.tally import primary_language

LATIN = ("cp1252", "iso8859_15", "mac_roman", "cp850")
CYRILLIC = ("cp1251", "koi8_r", "iso8859_5", "mac_cyrillic", "cp866")
# By language, the usual encoding first: it is used if the detector has no answer.
ENCODINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("be", "bg", "mk", "ru", "sr"), CYRILLIC),
    "uk": ("cp1251", "koi8_u", "iso8859_5", "mac_cyrillic", "cp866"),
    **dict.fromkeys(("cs", "hr", "hu", "pl", "ro", "sk", "sl"), ("cp1250", "iso8859_2", "mac_latin2", "cp852")),
    "el": ("cp1253", "iso8859_7", "mac_greek"),
    "tr": ("cp1254", "iso8859_9", "mac_turkish"),
    **dict.fromkeys(("he", "yi"), ("cp1255", "iso8859_8", "cp862")),
    **dict.fromkeys(("ar", "fa", "ur"), ("cp1256", "iso8859_6", "cp864")),
    **dict.fromkeys(("lt", "lv", "et"), ("cp1257", "iso8859_13")),
    "ja": ("cp932", "euc_jp"),
    "zh": ("gb18030", "big5hkscs"),
    "ko": ("cp949",),
    "vi": ("cp1258",),
    "th": ("cp874", "tis_620"),
}
SAMPLE = 1 << 16  # bytes that are examined


def detect(sample: bytes, language: str) -> str:
    """The likeliest encoding of bytes that are not UTF-8, in a text of the given language.

    Among the encodings that can decode the bytes, the one is chosen whose text has most letters of the language's
    script in the usual case, and which charset-normalizer finds least garbled.
    """
    known = ENCODINGS.get(primary_language(language), LATIN)
    sample = sample[:SAMPLE]
    sample = sample[: sample.rfind(b"\n") + 1 or len(sample)]
    readable = [name for name in known if _decodes(sample, name)]
    if len(readable) < 2:
        return (readable or list(known))[0]
    garbled = needed("charset_normalizer.md").mess_ratio
    return min(readable, key=lambda name: _odd(sample.decode(name)) + garbled(sample.decode(name)[:4096], 1.0))


def _decodes(sample: bytes, name: str) -> bool:
    try:
        sample.decode(name)
    except (UnicodeDecodeError, LookupError):
        return False
    return True


def _odd(text: str) -> float:
    """The share of characters that are unusual in text: controls, box drawing, a capital after a small letter."""
    odd = letters = 0
    last = " "
    for c in text:
        if c.isalpha():
            letters += 1
            odd += c.isupper() and last.islower()
            odd += "\u0400" <= c <= "\u040f" or "\u0450" <= c <= "\u045f"  # rare Cyrillic letters
        elif (
            not (c.isprintable() or c in "\r\n\t") or "\u2500" <= c <= "\u25ff" or (not c.isascii() and last.isalpha())
        ):
            odd += 1
        last = c
    return odd / max(1, letters)
