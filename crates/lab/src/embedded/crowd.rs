//! Many guests in one process, one per port. Their drivers are up and receive packets. They send nothing, unless the first two are
//! ordered to be a generator.

use nicety_drivers::BUDGET;

use super::link::GuestError;
use super::members::Members;
use super::offer::offer;
use super::orders::{Orders, send_answer};
use super::words::{Answer, Attach, Order};

/// Attaches to all ports and serves them until the orders end.
pub fn crowd(orders: &mut Orders, to: &[Attach]) -> Result<(), GuestError> {
    let mut members = Members::attach(to)?;
    let mut ready = false;
    while !orders.ended() {
        let mut busy = false;
        for member in members.all.iter_mut().filter(|member| member.polling) {
            if member.link.receive(BUDGET, &mut |_, _| {})? < BUDGET {
                member.polling = member.link.rest()?;
            }
            member.link.flush()?;
            busy |= member.polling;
        }
        if !ready && members.all.iter().all(|member| member.link.up()) {
            ready = true;
            send_answer(&Answer::Ready)?;
        }
        members.wait(busy, orders)?;
        match orders.next()? {
            Some(Order::Offer { wire_bytes, a_second, seconds }) => {
                let offered = offer(orders, &mut members, wire_bytes, a_second, seconds)?;
                send_answer(&Answer::Offered(offered))?;
            }
            Some(_) => return Err(GuestError::Peer("these guests only receive, or offer frames".to_owned())),
            None => {}
        }
    }
    members.all.iter_mut().try_for_each(|member| member.link.close())
}
