//! The help of `add`, `remove` and `set` in each list of the host file. Their arguments are the same for all lists ([`ListChange`]). Their
//! help names the thing that changes, with an example of its own.
//!
//! [`ListChange`]: super::ListChange

use clap::Command;

/// The help of the changes of one list.
#[derive(Debug)]
pub struct Help {
    /// The command, such as `group`.
    command: &'static str,
    /// One entry, with its article.
    one: &'static str,
    /// A name and values for `add`.
    add: &'static str,
    /// A name and values for `set`.
    set: &'static str,
    /// The end of the sentence about `remove`, behind "Remove a port group". It may be empty.
    removal: &'static str,
    /// The placeholder of the name.
    placeholder: &'static str,
    /// The name of an entry that is added, and of one that is there.
    names: [&'static str; 2],
}

/// The help of `nicety group`.
pub const GROUP: Help = Help {
    command: "group",
    one: "a port group",
    add: "web vlan=10",
    set: "web vlan=20",
    removal: "; a group that ports are in stays",
    placeholder: "NAME",
    names: ["The group's name"; 2],
};

/// The help of `nicety uplink`.
pub const UPLINK: Help = Help {
    command: "uplink",
    one: "an uplink",
    add: "tap7 kind=tap",
    set: "tap7 rate=10Gbit/s",
    removal: "",
    placeholder: "NAME",
    names: [
        "The uplink's name; a tap's is that of its interface",
        "The uplink's name; an uplink without a name is called by its kind, such as tap",
    ],
};

/// The help of `nicety card`.
pub const CARD: Help = Help {
    command: "card",
    one: "a card",
    add: "nic0 chip=82599",
    set: "nic0 uplink=tap0",
    removal: "; a card that has ports stays",
    placeholder: "NAME",
    names: ["The card's name"; 2],
};

/// The help of `nicety team`.
pub const TEAM: Help = Help {
    command: "team",
    one: "a team of uplinks",
    add: "lan members=tap0,tap1 mode=active-standby",
    set: "lan members=tap0,tap1,tap2",
    removal: ", and its uplinks with it",
    placeholder: "NAME",
    names: ["The team's name"; 2],
};

/// The help of `nicety mirror`.
pub const MIRROR: Help = Help {
    command: "mirror",
    one: "a mirror",
    add: "watch ports=vm1 to=vm9",
    set: "watch ports=vm1,vm2",
    removal: "",
    placeholder: "NAME",
    names: ["The mirror's name"; 2],
};

/// The help of `nicety flow-export`.
pub const FLOW_EXPORT: Help = Help {
    command: "flow-export",
    one: "an export of flows",
    add: "noc collector=udp:10.0.0.9:4739",
    set: "noc sampling=100",
    removal: "",
    placeholder: "NAME",
    names: ["The export's name"; 2],
};

/// The help of `nicety class`.
pub const CLASS: Help = Help {
    command: "class",
    one: "a class of I/O control",
    add: "tap0/iscsi reservation=2Gbit/s",
    set: "tap0/iscsi limit=4Gbit/s",
    removal: "",
    placeholder: "UPLINK/CLASS",
    names: ["The class, with its uplink or team before it"; 2],
};

impl Help {
    /// One of the list's commands, with this help if it is one of the three.
    pub fn on(&self, command: Command) -> Command {
        let Self { command: list, one, add, set, removal, placeholder: _, names: [new, known] } = self;
        match command.get_name() {
            "add" => self
                .with_name(command, new)
                .about(format!("Add {one}, with the keys of the host file: nicety {list} add {add}")),
            "remove" => self.with_name(command, known).about(format!("Remove {one}{removal}")),
            "set" => self.with_name(command, known).about(format!("Change values of {one}: nicety {list} set {set}")),
            _ => command,
        }
    }

    fn with_name(&self, command: Command, name: &'static str) -> Command {
        // `Command::mut_arg` would move the argument behind the others.
        command.mut_args(|arg| if arg.get_id() == "name" { arg.help(name).value_name(self.placeholder) } else { arg })
    }
}

#[cfg(test)]
#[path = "lists_test.rs"]
mod tests;
