"""Uses the generated client as a program would: lists ports, adds one, changes it, reads a capture's bytes, and removes it."""

import sys

import httpx
from nicety_client import Client
from nicety_client.api.daemon import get_daemon, get_metrics
from nicety_client.api.frames import capture
from nicety_client.api.ports import add_port, change_port, get_port, list_ports, remove_port, save_port
from nicety_client.api.vms import list_vms, wish_for_vm
from nicety_client.models import CaptureRequest, Changed, NewPort, PortChange, PortReport, Problem, WishWord
from nicety_client.models.new_port_adapter import NewPortAdapter

transport = httpx.HTTPTransport(uds=sys.argv[1])
client = Client(base_url="http://nicety", raise_on_unexpected_status=True, httpx_args={"transport": transport})


def names():
    return [port.name for port in list_ports.sync(client=client).ports]


def lines(changed):
    assert isinstance(changed, Changed), changed
    return [(change.kind.value, change.port, [(key.key, key.from_, key.to) for key in change.keys])
            for change in changed.plan.changes]


assert get_daemon.sync(client=client).starting is False
assert names() == ["vm1", "vm2"], names()

new = NewPort(name="vm3", adapter=NewPortAdapter.E1000, mac="52:54:00:12:34:03", socket="vm3.sock", vlan=10)
assert lines(add_port.sync(client=client, body=new)) == [("add", "vm3", [])]
assert names() == ["vm1", "vm2", "vm3"], names()

# Problems are typed, too: the name is taken; a VLAN's number is too large.
taken = add_port.sync(client=client, body=new)
assert isinstance(taken, Problem) and taken.status == 409, taken
wrong = change_port.sync("vm3", client=client, body=PortChange(vlan=4095))
assert isinstance(wrong, Problem) and wrong.status == 422 and wrong.mistakes[0].key == "port.vlan", wrong

change = PortChange(vlan=20, buffer="2MiB")
assert lines(change_port.sync("vm3", client=client, body=change)) == [
    ("set", "vm3", [("buffer", None, "2MiB"), ("vlan", "10", "20")])
]
port = get_port.sync("vm3", client=client)
assert isinstance(port, PortReport) and port.made_of.buffer == 2 << 20, port
assert port.policy.additional_properties == {"vlan": "20"}, port
# A key that is null gets its default.
assert lines(change_port.sync("vm3", client=client, body=PortChange(vlan=None))) == [("set", "vm3", [("vlan", "20", None)])]

# A capture's answer goes on until it is closed. It begins with a section header block of pcapng.
arguments = capture._get_kwargs(body=CaptureRequest(of="vm3", snap=128))
with client.get_httpx_client().stream(**arguments) as answer:
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/octet-stream", answer
    first = next(answer.iter_bytes())
    assert first[:4] == bytes([0x0A, 0x0D, 0x0D, 0x0A]), first

# No VM is attached.
unsaved = save_port.sync("vm3", client=client)
assert isinstance(unsaved, Problem) and unsaved.status == 409, unsaved

# No VM is protected.
assert list_vms.sync(client=client).vms == []
none = wish_for_vm.sync("web", WishWord.FAILOVER, client=client)
assert isinstance(none, Problem) and none.status == 404, none

assert 'nicety_port_info{port="vm3"' in get_metrics.sync(client=client)
assert lines(remove_port.sync("vm3", client=client, cut_off=False)) == [("remove", "vm3", [])]
assert names() == ["vm1", "vm2"], names()
print("done")
