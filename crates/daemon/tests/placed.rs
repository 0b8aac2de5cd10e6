//! Ports are placed on the worker with the fewest, or pinned. A port's number says which worker has it.

#[allow(dead_code, reason = "this test waits for nothing")]
mod stage;

use stage::Stage;

const WORKERS: usize = 3;

/// The workers of the ports with these numbers.
fn workers(stage: &Stage, numbers: impl IntoIterator<Item = usize>) -> Vec<usize> {
    numbers.into_iter().map(|number| usize::from(stage.view(number).id.0) % WORKERS).collect()
}

#[test]
fn ports_are_dealt_to_the_workers_with_the_fewest_and_pinned_ones_go_where_they_are_pinned() {
    let stage = Stage::new(WORKERS, &["e1000"; 6]);
    let mut dealt = workers(&stage, 1..=6);
    dealt.sort();
    assert_eq!(dealt, [0, 0, 1, 1, 2, 2]);
    for number in 7..=9 {
        let mut spec = stage.spec(number, "e1000");
        spec.config.worker = Some(1);
        stage.daemon.open(spec).unwrap();
    }
    assert_eq!(workers(&stage, 7..=9), [1, 1, 1]);
    // The next ones leave the full worker alone.
    for number in 10..=13 {
        stage.daemon.open(stage.spec(number, "e1000")).unwrap();
    }
    let mut next = workers(&stage, 10..=13);
    next.sort();
    assert_eq!(next, [0, 0, 2, 2]);
    let on_two: Vec<usize> = (1..=13).filter(|number| workers(&stage, [*number]) == [2]).collect();
    on_two.iter().for_each(|number| drop(stage.daemon.close(&format!("vm{number}"))));
    stage.daemon.open(stage.spec(14, "e1000")).unwrap();
    assert_eq!(workers(&stage, [14]), [2], "where ports have left there is room");
}
