//! The mailbox (82576 datasheet, 7.10.2.9 and 8.14; 82599, VFMAILBOX and VFMBMEM): a message of sixteen words, shared by both sides, and the bits by which they
//! take turns.
//!
//! ```text
//! driver: VFU ─► words ─► REQ ──► family: PFACK, its reply in the words, PFSTS ──► driver: reads words ─► ACK
//! ```
//! The reply stays in the words: Linux's igbvf sees that the family is there by CTS in the first one, which it reads without a
//! message (e1000_check_for_link_vf; ixgbevf as well). REQ and ACK read as 0. PFU is never set: the family writes between two accesses.
//!
//! A word that the driver has not asked for, of a link or a reset, waits while the driver holds the mailbox (VFU). It also waits until the
//! driver has acknowledged a reply. Linux's physical functions do neither. They cannot set PFU while VFU is set, and lose their word
//! (igb_obtain_mbx_lock_pf tries for 10 ms, ixgbe_obtain_mbx_lock_pf once). They would overwrite a reply.

use nicety_adapter::family::{Answer, Ask, Grant, Held, MESSAGE_WORDS, Request, Rights, Standing};
use nicety_adapter::{Context, Outbox};
use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use super::VirtualFunction;
use super::family::{ADDRESSES_MAX, VLANS_MAX, word};
use super::registers::{self as r, mailbox, rctl, tctl, vmolr};

/// RAH.AV.
const ADDRESS_VALID: u32 = 1 << 31;
/// Longest frame before a driver asks for more: 1518 bytes and a tag.
const FRAME_USUAL: u32 = 1522;
/// RCTL of every function: broadcasts, VLANs by their table, no check sequence.
const RECEIVER: u32 = rctl::BAM | rctl::VFE | rctl::SECRC;

/// The function's side of its mailbox, and what it was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailbox {
    /// Grants that the family counts.
    pub standing: Standing,
    /// Asks that were not taken yet.
    reset: bool,
    message: bool,
    acknowledged: bool,
    /// A reply that the driver has not acknowledged.
    unread: bool,
    /// The link changed, or the card was reset: tell the driver as soon as the mailbox is free.
    news: bool,
    /// All multicast frames: asked for, and for lack of room for their hashes.
    promiscuous: bool,
    overflow: bool,
}

impl Mailbox {
    /// The function was reset: the family must know.
    pub fn ask_for_reset(&mut self) {
        self.reset = true;
    }

    /// A message was written that the driver must acknowledge before there is another.
    pub fn wait_for_reader(&mut self) {
        self.unread = true;
    }

    /// Whether this saved state is possible. The registers must grant exactly what it says, because a family judges by it.
    pub fn fits(&self, registers: &r::Bank) -> bool {
        let Standing { ready: _, version: _, addresses, vlans, silent_from: _ } = self.standing;
        let valid = registers.of(r::RAH).iter().skip(1).filter(|high| *high & ADDRESS_VALID != 0).count();
        let tags: u32 = registers.of(r::VFTA).iter().map(|word| word.count_ones()).sum();
        let multicast = if self.promiscuous || self.overflow { rctl::MPE } else { 0 };
        addresses <= ADDRESSES_MAX
            && vlans <= VLANS_MAX
            && valid == usize::from(addresses)
            && tags == u32::from(vlans) + 1
            && registers[r::RCTL] & !rctl::EN == multicast | RECEIVER
    }
}

impl VirtualFunction {
    /// A write to V2PMAILBOX. VFU has its new value.
    pub(super) fn write_mailbox(&mut self, value: u32, cx: &mut Context<'_>) {
        self.own.mailbox.message |= value & mailbox::REQ != 0;
        self.own.mailbox.acknowledged |= value & mailbox::ACK != 0;
        if value & mailbox::ACK != 0 {
            self.own.mailbox.unread = false;
        }
        self.send_news(cx);
        self.call_family(cx);
    }

    /// Asks for the family's attention if there are asks.
    pub(super) fn call_family(&mut self, cx: &mut Context<'_>) {
        let Mailbox { reset, message, acknowledged, .. } = self.own.mailbox;
        if reset || message || acknowledged || self.own.is_restored {
            self.own.asked_at = cx.now;
            cx.out.stalled.insert(Outbox::ASK);
        }
    }

    /// The next ask, in the order of igb_msg_task.
    pub(super) fn take_ask(&mut self) -> Option<Ask> {
        let this = &mut self.own.mailbox;
        let request = if std::mem::take(&mut self.own.is_restored) {
            Request::Restored(Held {
                enabled: self.registers[r::RCTL] & rctl::EN != 0,
                all_multicast: self.registers[r::RCTL] & rctl::MPE != 0,
            })
        } else if std::mem::take(&mut this.reset) {
            Request::Reset
        } else if std::mem::take(&mut this.message) {
            let mut words = [0; MESSAGE_WORDS];
            words.iter_mut().zip(self.registers.of(r::VMBMEM)).for_each(|(word, stored)| *word = *stored);
            Request::Message(words)
        } else if std::mem::take(&mut this.acknowledged) {
            Request::Acknowledged
        } else {
            return None;
        };
        let standing = this.standing;
        Some(Ask { request, standing, address: self.last_address(), at: self.own.asked_at })
    }

    /// The family's answer.
    pub(super) fn take_answer(&mut self, answer: &Answer, cx: &mut Context<'_>) {
        let mut bits = 0;
        if answer.acknowledged {
            bits |= mailbox::PFACK;
        }
        match &answer.reply {
            Some(reply) if answer.acknowledged || self.is_free() => {
                self.registers.of_mut(r::VMBMEM).iter_mut().zip(reply.words()).for_each(|(word, reply)| *word = *reply);
                bits |= mailbox::PFSTS;
                self.own.mailbox.unread = true;
            }
            Some(_) => self.own.mailbox.news = true,
            None => {}
        }
        if let Some(grant) = answer.grant {
            self.granted(grant, cx);
        }
        self.own.checks_tags = answer.checks_tags.unwrap_or(self.own.checks_tags);
        if answer.silent_from.is_some() {
            self.own.mailbox.standing.silent_from = answer.silent_from;
        }
        self.registers[r::V2PMAILBOX] |= bits;
        if bits != 0 {
            self.other_cause(cx);
        }
        // A message that got no reply leaves the mailbox free.
        self.send_news(cx);
    }

    /// The link changed. igb_ping_all_vfs; while a message is on its way, Linux waits for the mailbox.
    pub(super) fn link_changed(&mut self, cx: &mut Context<'_>) {
        self.own.mailbox.news = true;
        self.send_news(cx);
    }

    /// Whether the driver neither writes a message nor has one to read.
    fn is_free(&self) -> bool {
        let Mailbox { unread, message, .. } = self.own.mailbox;
        !unread && !message && self.registers[r::V2PMAILBOX] & mailbox::VFU == 0
    }

    fn send_news(&mut self, cx: &mut Context<'_>) {
        if !self.own.mailbox.news || !self.is_free() {
            return;
        }
        self.own.mailbox.news = false;
        let clear = if self.own.mailbox.standing.ready { word::CTS } else { 0 };
        self.registers[r::VMBMEM] = word::CONTROL | clear;
        self.registers[r::V2PMAILBOX] |= mailbox::PFSTS;
        self.other_cause(cx);
    }

    /// The state after power-on: nothing is granted.
    pub(super) fn clear_mailbox(&mut self) {
        self.own.mailbox = Mailbox::default();
        self.void_grants(false, false, None);
    }

    /// Puts a new grant into the card's registers for this function.
    fn granted(&mut self, grant: Grant, cx: &mut Context<'_>) {
        match grant {
            Grant::Reset { ready, enabled, address } => {
                self.void_grants(ready, enabled, address);
                // A driver reads the state of its link after a reset.
                self.own.mailbox.news &= !ready;
                if enabled {
                    self.look_at_all_queues(cx);
                    self.offer_room(!0, cx);
                }
            }
            Grant::Address(address) => self.set_address(0, Some(address)),
            Grant::AddAddress(address) => {
                self.own.mailbox.standing.addresses += 1;
                self.set_address(usize::from(self.own.mailbox.standing.addresses), Some(address));
            }
            Grant::OnlyAddress(one) => {
                self.own.mailbox.standing.addresses = one.is_some().into();
                (1..self.registers.of(r::RAL).len())
                    .for_each(|index| self.set_address(index, one.filter(|_| index == 1)));
            }
            Grant::Version(version) => self.own.mailbox.standing.version = version,
            Grant::Multicast { count, hashes, all } => {
                self.registers.of_mut(r::MTA).fill(0);
                self.own.mailbox.overflow = all;
                for hash in hashes.iter().take(count.into()) {
                    let word = self.registers.of_mut(r::MTA).get_mut(usize::from(hash >> 5));
                    word.into_iter().for_each(|word| *word |= 1 << (hash & 31));
                }
                self.set_multicast_mode();
            }
            Grant::AllMulticast(on) => {
                self.set_wish(on);
                self.own.mailbox.promiscuous = on;
                self.set_multicast_mode();
            }
            Grant::WantsAllMulticast => {
                self.set_wish(true);
                self.own.mailbox.promiscuous = false;
                self.set_multicast_mode();
            }
            Grant::Rights(rights) => self.set_rights(rights),
            Grant::NoVlans => self.void_vlans(),
            Grant::Vlan { id, on } => self.set_vlan(id, on),
            Grant::FrameMax(bytes) => {
                let pool = self.registers[r::VMOLR] & !vmolr::RLPML;
                self.registers[r::VMOLR] = pool | bytes.min(vmolr::RLPML);
            }
        }
    }

    /// Keeps whether the driver wants all multicast frames: the pool's own bit.
    fn set_wish(&mut self, on: bool) {
        let pool = self.registers[r::VMOLR] & !vmolr::MPE;
        self.registers[r::VMOLR] = pool | if on { vmolr::MPE } else { 0 };
    }

    /// The host's new policy, while the queues run on.
    fn set_rights(&mut self, rights: Rights) {
        let Rights { address, addresses, all_multicast, vlans, tells } = rights;
        let loses = (address.is_some() && address != self.last_address())
            || (!addresses && self.own.mailbox.standing.addresses > 0);
        if address.is_some() {
            self.set_address(0, address);
        }
        if !addresses {
            self.own.mailbox.standing.addresses = 0;
            (1..self.registers.of(r::RAL).len()).for_each(|index| self.set_address(index, None));
        }
        let wants = self.own.mailbox.promiscuous || self.registers[r::VMOLR] & vmolr::MPE != 0;
        self.set_wish(wants);
        self.own.mailbox.promiscuous = wants && all_multicast;
        self.set_multicast_mode();
        if !vlans {
            self.void_vlans();
        }
        if self.own.mailbox.standing.ready {
            self.registers[r::RCTL] |= rctl::EN;
            self.registers[r::TCTL] |= tctl::EN;
            self.own.mailbox.standing.ready = !(loses && tells);
            self.own.mailbox.news |= loses && tells;
        }
    }

    /// igb_vf_reset: no addresses but this one, VLAN 0, frames of the usual length.
    fn void_grants(&mut self, ready: bool, enabled: bool, address: Option<Mac>) {
        let silent_from = self.own.mailbox.standing.silent_from;
        self.own.mailbox.standing = Standing { ready, silent_from, ..Standing::default() };
        (self.own.mailbox.promiscuous, self.own.mailbox.overflow) = (false, false);
        // The last address is not valid any more, and remembered.
        let last = self.last_address();
        for name in [r::RAL, r::RAH, r::MTA] {
            self.registers.of_mut(name).fill(0);
        }
        self.registers[r::VMOLR] = FRAME_USUAL;
        self.void_vlans();
        let (receiver, transmitter) = if enabled { (rctl::EN, tctl::EN) } else { (0, 0) };
        self.registers[r::RCTL] = receiver | RECEIVER;
        self.registers[r::TCTL] = transmitter | tctl::PSP;
        self.set_address(0, address.or(last));
        if address.is_none() {
            self.registers.of_mut(r::RAH).first_mut().into_iter().for_each(|high| *high &= !ADDRESS_VALID);
            self.filter.load(&self.registers);
        }
    }

    /// VLAN 0 alone, and tags stay in the frames.
    fn void_vlans(&mut self) {
        self.registers.of_mut(r::VFTA).fill(0);
        self.registers[r::VFTA] = 1;
        self.registers[r::VMOLR] &= !vmolr::STRVLAN;
        self.own.mailbox.standing.vlans = 0;
    }

    fn set_address(&mut self, index: usize, address: Option<Mac>) {
        let [a, b, c, d, e, f] = address.unwrap_or(Mac([0; 6])).0;
        let valid = if address.is_some() { ADDRESS_VALID } else { 0 };
        for (name, value) in
            [(r::RAL, u32::from_le_bytes([a, b, c, d])), (r::RAH, u32::from_le_bytes([e, f, 0, 0]) | valid)]
        {
            self.registers.of_mut(name).get_mut(index).into_iter().for_each(|register| *register = value);
        }
        self.filter.load(&self.registers);
    }

    /// The first address, valid or not.
    fn last_address(&self) -> Option<Mac> {
        let [low, high] =
            [r::RAL, r::RAH].map(|name| self.registers.of(name).first().map_or([0; 4], |word| word.to_le_bytes()));
        let address = Mac([low[0], low[1], low[2], low[3], high[0], high[1]]);
        address.is_unicast().then_some(address)
    }

    fn set_multicast_mode(&mut self) {
        let all = self.own.mailbox.promiscuous || self.own.mailbox.overflow;
        let control = self.registers[r::RCTL] & !rctl::MPE;
        self.registers[r::RCTL] = control | if all { rctl::MPE } else { 0 };
    }

    /// igb_set_vf_vlan_msg: tags are stripped since the first VLAN but 0.
    fn set_vlan(&mut self, id: u16, on: bool) {
        let bit = 1 << (id & 31);
        let Some(word) = self.registers.of_mut(r::VFTA).get_mut(usize::from(id >> 5)) else { return };
        let was = *word & bit != 0;
        *word = if on { *word | bit } else { *word & !bit };
        if id != 0 && was != on {
            let vlans = &mut self.own.mailbox.standing.vlans;
            *vlans = if on { vlans.saturating_add(1) } else { vlans.saturating_sub(1) };
        }
        let pool = self.registers[r::VMOLR] & !vmolr::STRVLAN;
        self.registers[r::VMOLR] = pool | if id != 0 { vmolr::STRVLAN } else { 0 };
    }
}
