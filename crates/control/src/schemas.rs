//! The schemas of ports, groups, uplinks, teams, mirrors, exports of flows and classes, made from the keys that the host file's parser knows, and those of binary bodies.

use std::borrow::Cow;

use nicety_daemon::capture::INSTRUCTIONS_MAX;
use nicety_host::{Form, Key, Kind, List, kind_of};
use nicety_socket::MAX_PATH;
use utoipa::openapi::schema::{AdditionalProperties, SchemaType};
use utoipa::openapi::{Array, ArrayBuilder, KnownFormat, Object, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// The keys of a new entry, or those that may be changed of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    New,
    Change,
}

/// The type of a JSON value. A value that is null gives a key its default; a key without a default takes none.
fn of_type(kind: Type, key: &Key) -> SchemaType {
    if key.required { SchemaType::Type(kind) } else { SchemaType::Array(vec![kind, Type::Null]) }
}

fn of_key(key: &Key) -> Object {
    let object = match key.form {
        Form::Number(least, most) => {
            let number = ObjectBuilder::new().schema_type(of_type(Type::Integer, key));
            number.minimum(Some(least)).maximum(Some(most))
        }
        Form::Flag => ObjectBuilder::new().schema_type(of_type(Type::Boolean, key)),
        form => {
            let text = ObjectBuilder::new().schema_type(of_type(Type::String, key)).pattern(form.pattern());
            let text = if form == Form::Socket { text.max_length(Some(MAX_PATH)) } else { text };
            let words = form.words().map(|words| words.into_iter().map(|word| Some(word.to_owned())));
            let null = (!key.required).then_some(None);
            text.enum_values(words.map(|words| words.chain(null).collect::<Vec<_>>()))
        }
    };
    object.description(Some(key.allowed)).build()
}

fn of_list(list: List, purpose: Use) -> RefOr<Schema> {
    let Kind { heading, keys, .. } = kind_of(list);
    let text = match purpose {
        Use::New => format!("A new `{heading}`: the keys and values of the host file."),
        Use::Change => format!(
            "Values to change of a `{heading}`: the keys and values of the host file. A key that is left out keeps its value."
        ),
    };
    let mut object = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Object)).description(Some(text));
    for key in keys.iter().filter(|key| purpose == Use::New || !list.names().contains(&key.name)) {
        object = object.property(key.name, of_key(key));
        if key.required && purpose == Use::New {
            object = object.required(key.name);
        }
    }
    object.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false))).into()
}

/// Terms that a port may have of its own inside a class, each with the key of the class that gives it to all ports.
const PORT_TERMS: [(&str, &str); 3] =
    [("shares", "port_shares"), ("reservation", "port_reservation"), ("limit", "port_limit")];

fn port_terms() -> RefOr<Schema> {
    let text = "Terms of one port inside a class. One that is left out stays; one that is `null` is that of the class's other ports.";
    let mut object = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Object)).description(Some(text));
    for (term, of_all) in PORT_TERMS {
        let key = kind_of(List::Classes).keys.iter().find(|key| key.name == of_all);
        object = key.into_iter().fold(object, |object, key| object.property(term, of_key(key)));
    }
    object.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false))).into()
}

macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident $make:expr;)*) => {
        $($(#[$doc])*
        pub(super) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $make
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        })*
    };
}

schemas! {
    /// A new port.
    NewPort of_list(List::Ports, Use::New);
    /// Changes of a port.
    PortChange of_list(List::Ports, Use::Change);
    /// A new port group.
    NewGroup of_list(List::Groups, Use::New);
    /// Changes of a port group.
    GroupChange of_list(List::Groups, Use::Change);
    /// A new uplink.
    NewUplink of_list(List::Uplinks, Use::New);
    /// Changes of an uplink.
    UplinkChange of_list(List::Uplinks, Use::Change);
    /// A new card.
    NewCard of_list(List::Cards, Use::New);
    /// Changes of a card.
    CardChange of_list(List::Cards, Use::Change);
    /// A new team of uplinks.
    NewTeam of_list(List::Teams, Use::New);
    /// Changes of a team of uplinks.
    TeamChange of_list(List::Teams, Use::Change);
    /// A new mirror.
    NewMirror of_list(List::Mirrors, Use::New);
    /// Changes of a mirror.
    MirrorChange of_list(List::Mirrors, Use::Change);
    /// A new export of flows.
    NewFlowExport of_list(List::FlowExports, Use::New);
    /// Changes of an export of flows.
    FlowExportChange of_list(List::FlowExports, Use::Change);
    /// A new class of I/O control.
    NewClass of_list(List::Classes, Use::New);
    /// Changes of a class of I/O control.
    ClassChange of_list(List::Classes, Use::Change);
    /// Changes of a port's terms inside a class.
    PortTermsChange port_terms();
    /// Bytes.
    Binary ObjectBuilder::new().schema_type(SchemaType::Type(Type::String))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary))).into();
}

/// A capture's filter: instructions of classic BPF (`struct sock_filter` of linux/filter.h), four numbers each.
pub(super) fn filter() -> Array {
    let number = |most: u32| {
        let number = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
        number.minimum(Some(0u32)).maximum(Some(most)).build()
    };
    let (code, jump, operand) = (u16::MAX.into(), u8::MAX.into(), u32::MAX);
    let instruction = ArrayBuilder::new().prefix_items([code, jump, jump, operand].map(number)).items(number(operand));
    let program = ArrayBuilder::new().items(instruction.min_items(Some(4)).max_items(Some(4)));
    let mut program = program.min_items(Some(1)).max_items(Some(INSTRUCTIONS_MAX)).build();
    program.schema_type = SchemaType::Array(vec![Type::Array, Type::Null]);
    program.description = Some(
        "A program in classic BPF: code, jump if true, jump if false, and operand of each instruction. Frames for which it \
         returns 0 are left out. `tcpdump -ddd -y EN10MB EXPRESSION` prints one."
            .to_owned(),
    );
    program
}
