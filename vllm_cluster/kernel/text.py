"""Takes out of text what looks like a secret, and puts numbers and names into words.

The one list of secret shapes; logs, bundles, plans and error messages all use it. Each expression takes time that grows
with the length of the text alone: runs are possessive and start only where the run before them has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import TypeVar

from vllm_cluster.kernel.private_keys import key_lines, looks_random

T = TypeVar("T")

# Of a number: those of C have 64 bits.
MAX_DIGITS = 19

REDACTED = "[redacted]"

# A token begins after anything but a letter or digit, and also right after %3D of a URL or \n of JSON.
_START = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt]))"
_TOKENS = rf"""(?x){_START}(?:
    (?:hf_|api_org_)[A-Za-z0-9]{{12,}}+
  | (?:sk|nvapi|gl(?:pat|rt|dt|cbt|ptt|ft|soat)|xox[abeprs]|xapp|tskey)-[A-Za-z0-9_-]{{12,}}+
  | (?:(?:xai|pplx|csk)-|dapi)[A-Za-z0-9]{{20,}}+
  | (?:glsa_|tgp_v1_|dop_v1_|lin_api_|shpat_|whsec_|ntn_|figd_|jina_|rpa_|ATATT3)[A-Za-z0-9_=-]{{20,}}+
  | (?:gh[opsur]_|github_pat_|dckr_pat_|(?:sk|rk)_(?:live|test)_|gsk_|npm_|r8_)[A-Za-z0-9_]{{10,}}+
  | (?:AKIA|ASIA)[0-9A-Z]{{12,}}+
  | AIza[A-Za-z0-9_-]{{30,}}+
  | (?:ya29|hv[bsr]|SG)\.[A-Za-z0-9_.-]{{16,}}+
  | pypi-[A-Za-z0-9_-]{{30,}}+
  | AGE-SECRET-KEY-1[0-9A-Z]{{20,}}+
  | eyJ[A-Za-z0-9_-]{{10,2000}}+\.[A-Za-z0-9_-]{{10,4000}}+\.[A-Za-z0-9_-]{{10,1000}}+
)"""
_PEM = (
    # Greedy where possessive would do, here and below: Python 3.11.0 to 3.11.4 match a possessive group wrongly.
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]{0,20000}+(?:-(?!----)[^-]{0,20000}+){0,4000})"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?+"
)
_NAMES = r"""(?:passwd|password|passphrase|secret|(?P<token>token)|credentials?
    |(?:access|account|api|auth|client|encryption|master|private|secret|shared|signing|subscription)[_-]?key)"""
# Spaces, quotes, colons and equals signs in a URL.
_URL_SIGNS = r"(?:%(?:25){0,3}(?:2[027]|0[9AD]|3[AD])){0,6}"
# Not after a name: what is redacted already, and the words of ordinary settings.
_HARMLESS = rf"(?!{_URL_SIGNS}\[?(?:redacted|hidden)\]|<|(?:none|null|true|false|undefined)\b)"
# A token may be one of a text: a small number counts it, or is its id.
_COUNT = r"(?(token)(?!\[?\s{0,3}\d{1,7}\b))"
_VALUE = r"(?=[^\s\"',;\])}&]{6})(?:[^\s\"',;\])}&\\]++|\\(?![\"'nrt]))*"
# After "password" in prose; anything else that follows it may be the password.
_PROSE = (
    r"(?!(?:auth|required|incorrect|invalid|expired|prompt|change|protect|denied|attempt|fail|login|method|entry|file"
    r"|must|cannot|should|policy|manager|hash)\w*)"
)

_NOT = rf"(?!{_URL_SIGNS}\[redacted)"
# Between a name and its value, also with the quotes of JSON in JSON in JSON, of a URL and of HTML.
_QUOTE = r"""\\{0,40}+b?(?:["']|%(?:25){0,3}2[27]|u002[27]|&quot;|&\#3[49];)?"""
_SPACE = r"(?:[ \t]{1,40}+|\r?\n|\\{1,16}[nrt]|%(?:25){0,3}(?:20|0[9AD])){0,6}"
_IS = r"(?:[=-]>|=|:|%(?:25){0,3}3[AD])"
# Each value of these is a secret; a token may be one of a text.
_STRONG = _NAMES.replace("|(?P<token>token)", "")
_NAME_WORDS = ("passw", "passphrase", "secret", "token", "credential", "key")
_STRONG_LINE = rf"""{_STRONG.replace(chr(10) + "    ", "")}s?["']?[ \t]?:[ \t]{{0,3}}"""
_AFTER = r"\s|\\{1,16}n"
# Of one command, up to an option; and options with a number at most.
_WORDS, _FLAGS = r"(?=\s)[^\r\n;|&]{0,200}?\s", r"(?:-\w{1,8}\s{1,3}(?:\d{1,2}\s{1,3}|(?!\d)))"
# The words are quick to look for: an expression runs only where one of them occurs. Its first group is kept.
_NAMED = (
    # NAME: ["value", "value"], as vLLM prints several keys
    (
        _NAME_WORDS,
        rf"""(?ix)({_NAMES}(?(token)|s?){_QUOTE}\s{{0,3}}[=:]\s{{0,3}}+\[\s{{0,40}}["'])(?:\[redacted\]|{_VALUE})
        (?:["'],\s{{0,40}}["'](?:\[redacted\]|{_VALUE})){{1,8}}""",
    ),
    # NAME: [ a block of YAML, and a list of it
    (_NAME_WORDS, rf"(?i)({_STRONG_LINE}[|>][+-]?\d?[ \t]*\n)(?P<in>[ \t]+)\S[^\n]*(?:\n(?P=in)[^\n]*){{0,60}}"),
    (_NAME_WORDS, rf"(?i)({_STRONG_LINE}\n[ \t]*- )[^\n]+(?:\n[ \t]*- [^\n]+){{0,8}}"),
    # NAME="value with spaces", also as JSON
    (
        _NAME_WORDS,
        rf"""(?ix)({_STRONG}{_QUOTE}{_SPACE}{_IS}{_SPACE}b?(?P<q>\\{{0,40}}+["'])){_HARMLESS}
        (?:(?!(?P=q))(?:\\.|[^\\\r\n])){{6,400}}(?=(?P=q))""",
    ),
    # "name": "NAME", "value": "value"
    (
        _NAME_WORDS,
        rf"""(?ix)({_NAMES}[\w-]{{0,20}}{_QUOTE},?{_SPACE}{_QUOTE}value{_QUOTE}{_SPACE}[=:]{_SPACE}{_QUOTE}){_HARMLESS}{_COUNT}{_VALUE}""",
    ),
    # Variables of the environment, and pwd= of a database; PWD alone is a folder.
    (
        ("_key=", "pwd=", "_pass=", "sshpass=", "_auth=", "psk="),
        rf"""(?x)((?:(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{{0,60}}_(?:KEY|PWD|PASS|AUTH)|(?<![A-Za-z])(?:[pP]wd|_auth|psk|SSHPASS))={_QUOTE})
        {_HARMLESS}{_VALUE}""",
    ),
    (
        ("-e", "-env"),
        rf"(?i)((?<![\w-])(?:-e|--env)[\s=][\"']?\w{{0,60}}?(?:key|pwd|pass|auth)=){_HARMLESS}(?!\\){_VALUE}",
    ),
    (
        ('pass"', "pass'", "pass=", 'pwd"', "pwd'"),
        rf"""((?<![A-Za-z_])(?:pass|pwd)(?:=|["']\s?:\s?){_QUOTE}){_HARMLESS}{_VALUE}""",
    ),
    # As rclone writes it.
    (("pass = ",), rf"((?<![A-Za-z_])pass = ){_NOT}[\w-]{{16,}}+(?!\S)"),
    (
        ("sshpass", "mysql"),
        rf"""((?<![\w-])(?:sshpass\s{{1,3}}-p\s?["']?|mysql\w{{0,9}}\s[^\r\n;|&]{{0,200}}?\s-p)){_NOT}[^\s"']{{1,400}}+""",
    ),
    (
        ("redis-cli", "ldap", "ipmitool", "zip ", "ssh-keygen", "openssl", "lftp"),
        rf"""(?x)((?<![\w-])(?:redis-cli{_WORDS}-a\s|ldap\w{{1,12}}{_WORDS}-w\s?|(?:ipmitool|(?:un)?zip|ssh-keygen){_WORDS}-[NP]\s
        |openssl{_WORDS}-k\s|-pass(?:in|out)?[\s=]["']?pass:|lftp{_WORDS}-u\s["']?[^\s,"']{{1,100}}+,)["']?)
        {_NOT}[^\s"']{{1,400}}+""",
    ),
    # htpasswd -b FILE NAME VALUE; with -n there is no file.
    (
        ("htpasswd",),
        rf"""(?x)((?<![\w-])htpasswd\s{{1,3}}(?={_FLAGS}{{0,5}}-\w{{0,7}}b)
        (?:(?={_FLAGS}{{0,5}}-\w{{0,7}}n)(?P<n>)|(?!{_FLAGS}{{0,5}}-\w{{0,7}}n))
        {_FLAGS}{{1,6}}(?(n)|[^\s-]\S{{0,400}}+\s{{1,3}})[^\s-]\S{{0,100}}+\s{{1,3}}["']?){_NOT}[^\s"']{{1,400}}+""",
    ),
    (("smb", "rpcclient"), rf"""((?<![\w-])(?:-U|--user)[\s=]?["']?[^\s%"']{{1,100}}+%){_NOT}[^\s"']{{1,400}}+"""),
    # vLLM takes several keys behind one option.
    (
        ("--api-key",),
        rf"""(?x)((?<![\w-])--api-key\s{{1,3}}){_NOT}[^\s-]\S{{0,400}}+
        (?:\s{{1,3}}(?!-)(?=\S{{0,60}}\d)(?=\S{{0,60}}[A-Za-z])[^\s"'/:]{{8,400}}+(?![/:])){{1,8}}""",
    ),
    # A key of PuTTY.
    (
        ("private-lines:",),
        r"(?i)(private-lines:\s?\d{1,4}(?:\s|\\{1,16}[nr]){1,4})(?:[a-z0-9+/=]{1,80}+(?![:-])(?:\s|\\{1,16}[nr]){0,4}){1,200}",
    ),
    (("private-mac:",), r"(?i)(private-mac:\s{0,3})[0-9a-f]{20,}+"),
    # .pgpass: host, port, database, user, password.
    (
        (":5432:", ":*:"),
        rf"((?:[\w.-]{{1,100}}+|\*):(?:5432|\*):[^\s:]{{1,100}}+:[^\s:]{{1,100}}+:){_NOT}[^\s:]{{4,400}}+",
    ),
    (
        ("key=", "code="),
        rf"""(?x)([?&](?:key|code)=){_NOT}(?=[^\s&]{{0,60}}\d)(?=[^\s&]{{0,60}}[A-Za-z])[^\s&"'<>\\]{{16,}}+""",
    ),
    (
        ("curl",),
        rf"""(?x)((?<![\w-])(?:-b|--cookie)[\s=]["']?(?=[\w.-]{{1,60}}=)){_NOT}
        (?:(?<=["'])[^"'\r\n]{{4,4000}}+|[^\s"']{{4,4000}}+)""",
    ),
    (
        ("curl",),
        rf"""((?<![\w-])(?:-u[^\s:"'=-]|(?:-U|-E|--cert)[\s=]["']?[^\s:"'])[^\s:"']{{0,99}}+:){_NOT}[^\s"']{{1,400}}+""",
    ),
    (("digest ",), r"""((?<![a-z])response=["']?)[0-9a-f]{32,}+"""),
    # docker login -u NAME -p VALUE; wandb login VALUE
    (("login",), rf"""((?<![\w-])login\s(?:[^\r\n;|&]{{0,200}}?\s)??-p[\s=]?["']?){_NOT}[^\s"']{{1,400}}+"""),
    (("login",), rf"((?<![\w-])login\s{{1,3}}(?:--[a-z-]{{1,40}}\s{{1,3}}){{0,4}}){_NOT}[0-9A-Za-z_]{{32,}}+"),
    (("api key",), rf"(?i)((?<![a-z])api key:?\s{{1,3}}){_NOT}[0-9a-z_-]{{20,}}+"),
    # Of any program: a port has no letter, a folder a slash or no digit.
    (
        ("-p",),
        rf"""((?<![\w-])-p\s["']?){_NOT}(?=[^\s"']{{0,60}}\d)(?=[^\s"']{{0,60}}[A-Za-z])[^\s"'/:]{{8,400}}+(?![/:])""",
    ),
    # Who knows the address of a webhook may write to the room.
    (
        ("hook",),
        rf"""(?i)(://(?:[^\s/"'<>]{{0,200}}hook[^\s/"'<>]{{0,200}}|[^\s"'<>]{{1,200}}?/\w{{0,20}}hooks?\w{{0,3}})/){_NOT}[^\s"'<>]{{6,1000}}+""",
    ),
    (("/bot",), rf"(/bot\d{{3,20}}:){_NOT}[A-Za-z0-9_-]{{16,}}+"),
    # NAME=value, "name": "value", name => value
    (
        _NAME_WORDS,
        rf"""(?ix)({_NAMES}(?(token)|s?)(?:[_-]?(?:id|key|value))?{_QUOTE}{_SPACE}(?:{_IS}|(?(token)(?!)|(?:>|,(?=\s?b?["']))))
        {_SPACE}(?:[|>][+-]?(?={_AFTER})|&\w{{1,40}}\s|!!?\w{{1,20}}\s|\[|\{{\s{{0,40}}["']value["']:)?{_SPACE}{_QUOTE})
        {_HARMLESS}{_COUNT}{_VALUE}""",
    ),
    (("sig",), rf"(?i)((?<![a-z])sig(?:nature)?(?:=|%3D)){_NOT}{_VALUE}"),
    (("auth",), rf"""(?i)((?<=["'])auth{_QUOTE}\s{{0,3}}:\s{{0,3}}+{_QUOTE}){_NOT}{_VALUE}"""),
    (("bearer", "basic"), rf"(?i)((?<![a-z])(?:bearer|basic)(?=[\s%\\+]){_SPACE}\+?){_NOT}[A-Za-z0-9._~+/=-]{{6,}}+"),
    (
        ("authorization",),
        rf"""(?ix)(authorization{_QUOTE}{_SPACE}{_IS}{_SPACE}{_QUOTE}(?:(?:aws4-[a-z0-9-]{{1,40}}|[a-z-]{{1,40}})(?=[\s%\\+]){_SPACE}\+?)?)
        {_NOT}(?![^\s"',\\]{{0,60}}{_SPACE}\[redacted)[^\s"',\\]{{6,}}+""",
    ),
    (("cookie",), rf"""(?i)((?<![a-z])cookie2?{_QUOTE}\s{{0,3}}:\s{{0,3}}+{_QUOTE}){_NOT}[^\r\n"'\\]{{4,}}+"""),
    (
        ("passw", "passphrase"),
        rf"""(?ix)((?:passwd|password|passphrase)\s{{1,3}}(?:(?:is|was)\s)?["']?){_PROSE}{_NOT}[^\s"',;:)\]]{{6,}}+""",
    ),
    (
        _NAME_WORDS,
        rf"""(?ix)({_NAMES}\s{{1,3}}(?:(?:is|was)\s)?["']?)(?=[^\s"',;]{{0,60}}\d){_HARMLESS}
        [^\s"',;:()\[\]]{{8,}}+""",
    ),
    # user:password for curl and its like
    (
        ("-u", "user"),
        rf"""((?<![\w-])(?:-u|--user|--proxy-user)[\s=]["']?[^\s:"']{{1,100}}+:){_NOT}[^\s"']{{1,400}}+""",
    ),
)
# How each of the tokens begins, in lower case.
_BEGINNINGS = (
    *("hf_", "api_org_", "sk-", "nvapi-", "glpat-", "xox", "xapp-", "tskey-", "gho_", "ghp_", "ghs_", "ghu_", "ghr_"),
    *("github_pat_", "dckr_pat_", "sk_", "rk_", "gsk_", "npm_", "r8_", "akia", "asia", "aiza", "ya29", "hvs."),
    *("pypi-", "age-secret-key-", "eyj", "glrt-", "gldt-", "glcbt-", "glptt-", "glft-", "glsoat-", "xai-", "pplx-"),
    *("csk-", "glsa_", "tgp_v1_", "dop_v1_", "lin_api_", "shpat_", "whsec_", "ntn_", "figd_", "jina_", "rpa_"),
    *("dapi", "atatt3", "sg.", "hvb.", "hvr."),
)
# What is a secret after any text.
_BARE = (
    (("private key",), _PEM, REDACTED),
    # -----BEGIN in base64
    (("ls0tls1crudjti",), r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]{16,}+", REDACTED),
    (_BEGINNINGS, _TOKENS, REDACTED),
    (("://",), r"(?<=://)[^\s/\"'<>\\]{1,600}@", REDACTED + "@"),
)
# An option of a command line and the word after it, also in a list of words.
_OPTION = re.compile(
    r"""(?<![\w-])(--?[A-Za-z][\w.-]{0,80}+)(["']?,\s{0,40}["']|["']?\s{1,3}(?:\\\n\s{0,40})?["']?|=["']?)(?![-"'\\])([^\s"']{1,4000}+)"""
)
_SECRET_OPTION = re.compile(r"(?:^|[-_])(?:token|password|passwd|passphrase|pass|secret|key|credentials?|pat)$", re.I)

_GUESSES = re.compile(r"\b[0-9a-fA-F]{32,}\b|(?<=:)[^\s/@:]+(?=@)")
# A private key with what is before it, and the word in which a text is cut.
_SHAPE, _CUT = 16 << 10, re.compile(r"\A\S*\s+")
_WORD = re.compile(r"[\w+/=\-]{20,}")


@cache
def _rules() -> list[tuple[tuple[bytes, ...], re.Pattern[str], str]]:
    """All shapes; compiled at the first use, since that takes a quarter of the time until help shows."""
    named = ((words, shape, rf"\g<1>{REDACTED}") for words, shape in _NAMED)
    return [(tuple(map(str.encode, words)), re.compile(shape), new) for words, shape, new in (*_BARE, *named)]


def redact(text: str) -> str:
    """The text without what looks like a secret."""
    # As bytes: of 3 MB with one emoji Python's own lower case takes 50.
    lowered = text.encode("utf-8", "surrogatepass").lower()
    for words, shape, instead in _rules():
        if any(map(lowered.__contains__, words)):
            text = shape.sub(instead, text)
    text = _cut_out(text, key_lines(text))
    return _OPTION.sub(_redact_option, text) if "-" in text else text


def redact_words(words: Iterable[str]) -> list[str]:
    """Each word of a command without what looks like a secret, also where only the option before it shows that.

    One without is the same object.

    Before they are quoted: of a line a quote could go with the secret, and the rest of a word become a command.
    """
    found, before = list[str](), ""
    for word in words:
        own, pair = redact(word), f"{before} {word}"
        found.append(own if own != word else REDACTED if before and redact(pair) != pair else word)
        before = word if word.startswith("-") and "=" not in word else ""
    return found


def end_of(text: str, most: int) -> str:
    """The end of a text from elsewhere, of so many characters, without what looks like a secret.

    That is looked for before the text is cut, as a part of a secret has its shape no more; a word that is cut is left
    out, as it may be a part of one that has no shape.
    """
    near = redact(text[-most - _SHAPE :]).strip()
    if len(near) <= most and len(text) <= most + _SHAPE:
        return near
    return _CUT.sub("", near[-most:], count=1)


def holds_token(text: str) -> bool:
    """Whether a text holds a token, a key or a password by its shape alone, under any name."""
    return any(shape.search(text) for _, shape, _ in _rules()[: len(_BARE)])


def redact_value(text: str) -> str:
    """The same for a single value, where a secret may have been put by mistake: what looks random goes too."""
    return _WORD.sub(_redact_if_random, _GUESSES.sub(REDACTED, redact(text)))


def number_of(text: str) -> int | None:
    """A whole number from 0 that is written in digits alone; None for all else, and for one that C has no integer for.

    Of text from elsewhere: Python's own refuses more than 4300 digits as an error of the program.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 host, 2 hosts."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """The noun for a number: host, hosts."""
    if number == 1:
        return noun
    if noun.endswith(("ch", "sh", "s", "x")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"


def and_more(names: Sequence[str]) -> str:
    """The first of several names, and how many there are beside it: a and 2 more."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def first_of(names: Sequence[str], most: int = 10) -> str:
    """Several names, with how many there are beside the first ones: a, b and 990 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def by_hosts(texts: Iterable[tuple[T, str]]) -> dict[T, str]:
    """Equal texts of several hosts, once, with the names of all of them."""
    hosts: dict[T, list[str]] = {}
    for what, host in texts:
        hosts.setdefault(what, []).append(host)
    return {what: ", ".join(names) for what, names in hosts.items()}


def size(number: float) -> str:
    """Bytes for people: 16.1 GB, 0.3 MB, 1.2 kB."""
    if 0 < number < 5e4:  # as MB it would be shown as nothing
        return f"{number / 1e3:.1f} kB"
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def age(seconds: float) -> str:
    """A duration for people: 40 s, 5 min, 3 h, 2 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def duration(seconds: float) -> str:
    """A duration for people that was chosen, in full: 1 h 30 min."""
    parts, left = [], seconds
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        whole, left = divmod(left, size)
        parts += [f"{whole:.0f} {unit}"] if whole else []
    parts += [f"{left:.10g} s"] if left or not parts else []
    return " ".join(parts)


def when(at: float, shape: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """A time that a host wrote, as people read it; `?` where no clock has it."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(shape)
    except (ValueError, OSError, OverflowError):
        return "?"


def host_port(address: str, port: int) -> str:
    """An address and a port as one word; IPv6 in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def printable(text: str) -> str:
    """The text with its unprintable characters as escapes: nothing in it can steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _redact_if_random(found: re.Match[str]) -> str:
    return REDACTED if looks_random(found[0]) else found[0]


def _cut_out(text: str, places: Iterable[tuple[int, int]]) -> str:
    kept, done = list[str](), 0
    for begin, end in places:
        kept += text[done:begin], REDACTED
        done = end
    return "".join((*kept, text[done:])) if done else text


def _redact_option(found: re.Match[str]) -> str:
    option, between, value = found.groups()
    if not _SECRET_OPTION.search(option) or value.startswith(REDACTED):
        return found[0]
    return f"{option}{between}{REDACTED}"
