//! A stream socket as messages with their descriptors, both ways, without blocking and in bounded memory
//! (vfio-user.rst, "Socket").

mod inbound;
mod outbound;

pub(crate) use inbound::{Fill, Inbound, Message};
pub(crate) use outbound::{Outbound, reply_header};
