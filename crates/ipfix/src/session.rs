//! A session with a collector: its messages and their numbers (RFC 7011).
//!
//! Over UDP a collector may miss a message, or begin later: templates are sent again from time to time (section 8.4). Over TCP they are sent
//! once for each connection (section 8.3). When only the ports' names have changed, only the names are sent.

use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use crate::element::{self, Field, Template};
use crate::record::{Port, Report};

/// Version of the protocol.
const VERSION: u16 = 10;
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
const TEMPLATE_SET: u16 = 2;
const OPTIONS_SET: u16 = 3;
/// Systematic count-based sampling (RFC 5477, section 8.2.2).
const COUNT_BASED: u16 = 1;
/// The only selector: the sampling of all ports.
const SELECTOR: u64 = 1;

/// What a session keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The observation domain: tells several exporters at one address apart.
    pub domain: u32,
    /// One frame in so many is counted.
    pub sampling: u32,
    /// Most bytes of a message.
    pub message_bytes: usize,
    /// Templates, names and sampling are sent again after this time. `None`: once.
    pub again: Option<Duration>,
}

/// The ports' names, by number.
pub type Names = std::collections::BTreeMap<u16, Arc<Port>>;

/// The messages that a collector needs beside records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// The names of interfaces.
    Names,
    /// Templates, the sampling and the names of interfaces.
    All,
}

/// See the module's page.
#[derive(Debug)]
pub struct Session {
    terms: Terms,
    /// Data records that were sent before.
    sequence: u32,
    /// The time at which templates were sent last, in nanoseconds.
    told_ns: Option<u64>,
    /// Names have changed since they were sent.
    has_new_names: bool,
}

/// The number of an interface: 0 means none (RFC 2863, ifIndex).
fn interface(number: u16) -> u32 {
    u32::from(number) + 1
}

impl Session {
    /// A session that has sent nothing.
    pub fn new(terms: Terms) -> Self {
        Self { terms, sequence: 0, told_ns: None, has_new_names: false }
    }

    /// Its terms.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// A connection begins: numbers start at 0, and templates are due.
    pub fn begin(&mut self) {
        (self.sequence, self.told_ns) = (0, None);
    }

    /// Names have changed: they are due.
    pub fn renew(&mut self) {
        self.has_new_names = true;
    }

    /// The messages beside records that are due.
    pub fn due(&self, now_ns: u64) -> Due {
        let are_templates_due = match (self.told_ns, self.terms.again) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(told), Some(again)) => u128::from(now_ns.saturating_sub(told)) >= again.as_nanos(),
        };
        match (are_templates_due, self.has_new_names) {
            (true, _) => Due::All,
            (false, true) => Due::Names,
            (false, false) => Due::Nothing,
        }
    }

    /// Sends what is due. `send` says whether a message was taken. Returns whether all were: if not, all is still due. `epoch_ns` is the
    /// time of 0, since 1970-01-01 00:00 UTC.
    pub fn announce(&mut self, names: &Names, now_ns: u64, epoch_ns: u64, mut send: impl FnMut(&[u8]) -> bool) -> bool {
        let (due, at) = (self.due(now_ns), now_ns.saturating_add(epoch_ns));
        if due == Due::All {
            let first = self.templates(at);
            if !send(&first) {
                return false;
            }
            self.sent(1);
        }
        let mut names = names.iter().peekable();
        while due != Due::Nothing && names.peek().is_some() {
            let (message, count) = self.some_names(&mut names, at);
            if !send(&message) {
                return false;
            }
            self.sent(count);
        }
        if due == Due::All {
            self.told_ns = Some(now_ns);
        }
        self.has_new_names = false;
        true
    }

    /// So many data records were sent.
    pub fn sent(&mut self, records: u32) {
        self.sequence = self.sequence.wrapping_add(records);
    }

    /// All templates, and the sampling: one record.
    fn templates(&self, at_ns: u64) -> Vec<u8> {
        let mut first = self.header(at_ns);
        for (set, is_options) in [(TEMPLATE_SET, false), (OPTIONS_SET, true)] {
            let begin = begin_set(&mut first, set);
            for template in Template::ALL.into_iter().filter(|template| (template.scope() > 0) == is_options) {
                describe(&mut first, template);
            }
            end_set(&mut first, begin);
        }
        let begin = begin_set(&mut first, Template::Sampling.id());
        first.extend(SELECTOR.to_be_bytes());
        first.extend(COUNT_BASED.to_be_bytes());
        first.extend(1u32.to_be_bytes());
        first.extend(self.terms.sampling.saturating_sub(1).to_be_bytes());
        end_set(&mut first, begin);
        end_message(&mut first);
        first
    }

    /// As many of these names as fit into a message, and their number.
    fn some_names<'a>(
        &self,
        names: &mut Peekable<impl Iterator<Item = (&'a u16, &'a Arc<Port>)>>,
        at_ns: u64,
    ) -> (Vec<u8>, u32) {
        let mut message = self.header(at_ns);
        let begin = begin_set(&mut message, Template::Interface.id());
        let (mut record, mut count) = (Vec::new(), 0);
        while let Some((number, port)) = names.peek() {
            record.clear();
            record.extend(interface(**number).to_be_bytes());
            text(&mut record, &port.name);
            if message.len() + record.len() > self.terms.message_bytes && count > 0 {
                break;
            }
            message.extend(&record);
            count += 1;
            names.next();
        }
        end_set(&mut message, begin);
        end_message(&mut message);
        (message, count)
    }

    /// A message with the first of these reports, as many as fit, and their number. It has the number that follows what was
    /// [sent](Self::sent): a message that is not sent leaves no gap.
    pub fn message<'a>(
        &self,
        reports: impl IntoIterator<Item = Report<'a>>,
        now_ns: u64,
        epoch_ns: u64,
    ) -> (Vec<u8>, u32) {
        let (mut message, mut count, mut record) = (self.header(now_ns.saturating_add(epoch_ns)), 0, Vec::new());
        // The set under construction, and where it begins.
        let mut set: Option<(u16, usize)> = None;
        for report in reports {
            let id = encode(&mut record, &report, epoch_ns);
            let needs = record.len() + if set.is_some_and(|(of, _)| of == id) { 0 } else { SET_HEADER };
            if count > 0 && message.len() + needs > self.terms.message_bytes {
                break;
            }
            if set.is_none_or(|(of, _)| of != id) {
                set.take().into_iter().for_each(|(_, begin)| end_set(&mut message, begin));
                set = Some((id, begin_set(&mut message, id)));
            }
            message.extend(&record);
            count += 1;
        }
        set.into_iter().for_each(|(_, begin)| end_set(&mut message, begin));
        end_message(&mut message);
        (message, count)
    }

    /// A message's header (section 3.1), without its length.
    fn header(&self, at_ns: u64) -> Vec<u8> {
        let seconds = (at_ns / 1_000_000_000) as u32;
        let mut message = Vec::with_capacity(self.terms.message_bytes);
        message.extend(VERSION.to_be_bytes());
        message.extend([0, 0]);
        message.extend(seconds.to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(self.terms.domain.to_be_bytes());
        debug_assert_eq!(message.len(), HEADER);
        message
    }
}

/// Writes a length into a header.
fn set_len(message: &mut [u8], at: usize, len: usize) {
    if let Some(field) = message.get_mut(at..at + 2) {
        field.copy_from_slice(&(len as u16).to_be_bytes());
    }
}

fn begin_set(message: &mut Vec<u8>, id: u16) -> usize {
    let begin = message.len();
    message.extend(id.to_be_bytes());
    message.extend([0, 0]);
    begin
}

fn end_set(message: &mut [u8], begin: usize) {
    set_len(message, begin + 2, message.len() - begin);
}

fn end_message(message: &mut [u8]) {
    set_len(message, 2, message.len());
}

/// A template record (sections 3.4.1 and 3.4.2.2).
fn describe(message: &mut Vec<u8>, template: Template) {
    let fields = template.fields();
    message.extend(template.id().to_be_bytes());
    message.extend((fields.len() as u16).to_be_bytes());
    if template.scope() > 0 {
        message.extend(template.scope().to_be_bytes());
    }
    for Field { element, len } in fields {
        message.extend(element.to_be_bytes());
        message.extend(len.to_be_bytes());
    }
}

/// A text with its length (section 7). Longer ones are cut.
fn text(record: &mut Vec<u8>, text: &str) {
    let end = text.floor_char_boundary(254);
    record.push(end as u8);
    record.extend(&text.as_bytes()[..end]);
}

/// Writes a record in the order of its template's fields, and returns the template's number.
fn encode(record: &mut Vec<u8>, report: &Report<'_>, epoch_ns: u64) -> u16 {
    let Report { record: flow, direction, interfaces, name, untagged, dropped } = report;
    let key = &flow.key;
    let template = Template::Flow { version: key.version(), dropped: dropped.is_some() };
    let ms = |ns: u64| (ns.saturating_add(epoch_ns) / 1_000_000).to_be_bytes();
    record.clear();
    for field in template.fields() {
        match field {
            element::START => record.extend(ms(flow.first_ns)),
            element::END => record.extend(ms(flow.last_ns)),
            element::OCTETS => record.extend(flow.octets.to_be_bytes()),
            element::PACKETS => record.extend(flow.packets.to_be_bytes()),
            element::SOURCE_MAC => record.extend(key.source_mac()),
            element::DESTINATION_MAC => record.extend(key.destination_mac()),
            element::ETHERTYPE => record.extend(key.ethertype().to_be_bytes()),
            element::VLAN => {
                let vlan = if key.vlan() == 0 { *untagged } else { key.vlan() };
                record.extend(vlan.to_be_bytes());
            }
            element::SOURCE_V4 => record.extend(key.ipv4()[0]),
            element::DESTINATION_V4 => record.extend(key.ipv4()[1]),
            element::SOURCE_V6 => record.extend(key.ipv6()[0]),
            element::DESTINATION_V6 => record.extend(key.ipv6()[1]),
            element::PROTOCOL => record.push(key.protocol()),
            element::SOURCE_PORT => record.extend(key.ports()[0].to_be_bytes()),
            element::DESTINATION_PORT => record.extend(key.ports()[1].to_be_bytes()),
            element::TCP_FLAGS => record.extend(flow.flags.to_be_bytes()),
            element::INGRESS => record.extend(interfaces[0].map_or(0, interface).to_be_bytes()),
            element::EGRESS => record.extend(interfaces[1].map_or(0, interface).to_be_bytes()),
            element::DIRECTION => record.push(direction.code()),
            element::END_REASON => record.push(flow.end as u8),
            element::INTERFACE_NAME => text(record, name),
            element::STATUS => record.push(dropped.map_or(0, |(status, _)| status)),
            element::SELECTOR_NAME => text(record, dropped.map_or("", |(_, reason)| reason)),
            // Templates of flows have no others: a test encodes each.
            Field { len, .. } => record.extend(std::iter::repeat_n(0, len.into())),
        }
    }
    template.id()
}

#[cfg(test)]
#[path = "session_test.rs"]
mod tests;
