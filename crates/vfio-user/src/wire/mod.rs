//! Messages with their descriptors on a stream socket, both ways, without blocking and in bounded memory (vfio-user.rst,
//! "Socket").

mod inbound;
mod outbound;

pub(crate) use inbound::{Fill, Inbound, Message, SavedInbound};
pub(crate) use outbound::{Outbound, SavedOutbound, reply_header};
