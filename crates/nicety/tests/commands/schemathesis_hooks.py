"""A check for schemathesis: a request that the document allows is refused by a rule below, or not at all."""

import re

import schemathesis

# What a schema cannot say about one value: the rest of the configuration, or a rule across keys or characters.
RULES = [
    # Values of the same entry, or of another one.
    r"there is no (trunk|arp_guard|port group|(send|receive)_average)\b",
    r"there is (vlan|trunk|qinq|private) already",
    r"the port accepts mac_changes and forged_transmits",
    r"is less than (mtu|send_average|receive_average)\b",
    r'with "0666" every user|there is no mode = "0666" beside it',
    r'with role = "connect" the socket is the VMM\'s',
    r"(is|are) .* already: (choose another|give this one)|is the address of .* already|stands there twice",
    r"it is missing from this \[|it does not belong to this kind of uplink",
    r"a querier (needs|has no)|nothing to pace",
    r"it does not go with several queues|workers are counted from 0|the daemon has \d+ workers?$",
    r"nothing comes in by this kind of uplink|without inward_rate nothing waits|is above the uplink's rate",
    # Teams and cards.
    r'there is no (uplink|uplink or team|card) "|it does not belong to this mode|it has no member|is no member\b',
    r"the team has \d+ members|this uplink is a member|is (a member of|in) (a )?team|is named twice|is no link to a neighbour",
    r"has no rate, and nobody knows when it is full|has several queues|is no station's address",
    r"has at most \d+ functions|card .* has \d+ functions|function \d+ of card .* already|its functions are",
    r"only a port at a card's function has this|there is no uplink, to which all would go|no vlan, in whose tag",
    r"there are \d+ uplinks and teams|it reaches the uplink alone|with this card there are \d+ functions",
    r"has no uplink, of which it would be a part|has no rate, and a reservation is a part of it|it may send at most",
    r"are reserved (on|for ports of class) |a port of class .* may send at most",
    r'".*" (has a|does not begin with a letter|cannot be an interface)|it has \d+ characters',
    # Classes of I/O control.
    r"bit/s is too small|are reserved( for .*)?, and only .* may be sent|are reserved for its ports, and for the class",
    r"each guest chooses this itself|is the class of all frames|has no frames: say which|frames come first up to the class's",
    r"is there twice|is none of the class's ports|a frame may be of this class and of|has a class .* already|has more than \d+ classes",
    r"its last port is below its first",
    # Mirrors.
    r"gets the copies of mirror .* already|would get copies of what it gets: a loop|copies are not copied again",
    r"has no frames: say whose|there is no (uplink and no team|port and no uplink|port) \"|copies take one|a switch has at most \d+ mirrors",
    r"is a querier, which reads no copies|would have copies alone",
    # The adapter.
    r"has (at most \d+ queue pairs|one queue pair)|does not tell its driver an MTU|carries at most \d+ bytes",
    r"cannot have its doorbells mapped|is reached by vfio-user|PCI function, and with it the option ROM",
    r"has no PCI subsystem of its own|cannot tell its driver that it stands by|there is no UNIX group",
    # The value itself: beyond what a regular expression says well.
    r"is not the address of one station",
    r"` is no VLAN: ",
    r"has \d+ bytes, and the system's limit is 107",
    # A host file in TOML, a filter's program, a port's state.
    r"TOML|expected|there is no port: write a \[\[port\]\]|there is no such table|has a zero byte",
    r"the filter's",
    r"the saved state is damaged|it is no state",
    r"a frame of \d+ bytes is none",
]


@schemathesis.check
def allowed_requests_are_refused_by_named_rules_only(ctx, response, case):
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in (400, 422):
        return
    problem = response.json()
    found = [mistake["what"] for mistake in problem.get("mistakes", [])] or [problem["detail"]]
    unnamed = [what for what in found if not any(re.search(rule, what) for rule in RULES)]
    assert not unnamed, f"{response.status_code}, by no named rule: {unnamed}"


@schemathesis.hook
def before_call(context, case, kwargs):
    """Keeps the requests in the test's own folder, and off the machine's network. A change that waited for a day would keep others out."""
    if case.query and isinstance(case.query.get("confirm"), int) and case.query["confirm"] > 1:
        case.query["confirm"] = 1
    body = case.body
    if isinstance(body, dict):
        for key in ("socket", "rom", "file"):
            if isinstance(body.get(key), str):
                body[key] = body[key].replace("..", "__").lstrip("/") or "x"
        if body.get("kind") == "tap":
            body["kind"] = "null"
