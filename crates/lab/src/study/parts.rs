//! Parts that rows need and that a run would miss, looked for before anything is laid: a row whose driver is missing costs no run.

use std::path::Path;

use nicety_guests::{Error, Uio};

use crate::findings::and;
use crate::plan::Plan;

/// Leaves out the rows whose user-space driver is not beside `program`, and says so in a sentence.
///
/// # Errors
/// No other adapter remains. The message names the remedy.
pub fn leave_out(plan: &mut Plan, program: &Path) -> Result<Option<String>, Error> {
    let Err(error) = needed(plan, program) else { return Ok(None) };
    let (kept, gone) = plan.subjects.drain(..).partition(|subject| subject.driver.is_none());
    plan.subjects = kept;
    if plan.subjects.iter().all(|subject| subject.is_native()) {
        return Err(error);
    }
    let mut names: Vec<String> = gone.into_iter().map(|subject: crate::subject::Subject| subject.adapter).collect();
    names.dedup();
    Ok(Some(format!("{} {} left out: {error}", and(&names), if names.len() == 1 { "is" } else { "are" })))
}

/// Checks that all drivers of the plan's rows are there.
///
/// # Errors
/// One is missing; the message names the remedy.
pub fn needed(plan: &Plan, program: &Path) -> Result<(), Error> {
    let has_row = plan.subjects.iter().any(|subject| subject.driver.is_some());
    if has_row { Uio::beside(program).map(drop) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;
    use crate::study::Options;

    fn plan(adapters: &[&str]) -> Plan {
        let adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
        Options { adapters, ..Options::default() }.plan(methods::find("vmxnet3-iperf").unwrap()).unwrap()
    }

    #[test]
    fn rows_without_their_driver_are_left_out_with_the_remedy_and_the_others_stay() {
        let folder = nicety_guests::Folder::new().unwrap();
        let program = folder.path().join("nicety");
        let mut all = plan(&[]);
        let said = leave_out(&mut all, &program).unwrap().unwrap();
        assert!(
            said.starts_with("vmxnet2 and vmxnet are left out: ") && said.contains("cargo build -p nicety"),
            "{said}"
        );
        assert!(all.subjects.iter().any(|subject| subject.adapter == "vmxnet3"), "{all:?}");
        assert!(all.subjects.iter().all(|subject| subject.driver.is_none()), "{all:?}");
        assert!(leave_out(&mut plan(&["vmxnet2"]), &program).is_err(), "nothing remains but the native row");
        folder.write("nicety-uio", "").unwrap();
        let mut whole = plan(&[]);
        assert_eq!((leave_out(&mut whole, &program).unwrap(), whole.subjects), (None, plan(&[]).subjects));
    }
}
