//! Tests of the plan: order, choice of adapters, times.

use super::*;
use crate::bench::fake::FakeBench;
use crate::method::Server;

fn plan(options: &Options) -> Plan {
    Plan::new(options, &FakeBench::two_servers()).unwrap()
}

#[test]
fn splitmix_gives_the_published_sequence() {
    // The first outputs for seed 1234567, as listed with the algorithm at rosettacode.org, "Pseudo-random numbers/Splitmix64".
    let mut random = SplitMix::new(1_234_567);
    let drawn: Vec<u64> = (0..5).map(|_| random.draw()).collect();
    assert_eq!(
        drawn,
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821
        ]
    );
}

#[test]
fn every_round_has_every_contestant_and_load_once() {
    let plan = plan(&Options::default());
    assert_eq!(plan.items.len(), 7 * 4 * 4);
    for round in plan.items.chunks(16) {
        for contestant in &plan.contestants {
            for load in Load::ALL {
                assert_eq!(round.iter().filter(|i| i.contestant == *contestant && i.load == load).count(), 1);
            }
        }
        assert!(round.iter().all(|item| item.round == round[0].round));
    }
}

#[test]
fn runs_of_different_contestants_interleave() {
    let plan = plan(&Options::default());
    for load in plan.items.chunks(4) {
        assert!(load.windows(2).all(|pair| pair[0].contestant != pair[1].contestant && pair[0].load == pair[1].load));
    }
}

#[test]
fn each_contestant_is_first_equally_often() {
    let plan = plan(&Options { repeat: Some(8), ..Options::default() });
    for contestant in &plan.contestants {
        let first = plan.items.chunks(4).filter(|load| load[0].contestant == *contestant).count();
        assert_eq!(first, 8, "twice in each of four loads");
    }
}

#[test]
fn the_order_follows_from_the_seed() {
    let of = |seed| plan(&Options { seed, ..Options::default() }).items;
    assert_eq!(of(7), of(7));
    assert!((0..20).any(|seed| of(seed) != of(7)));
}

#[test]
fn a_bench_whose_guests_start_slowly_keeps_a_contestant_for_all_its_loads() {
    let bench = FakeBench { order: Order::EveryContestant, ..FakeBench::two_servers() };
    let plan = Plan::new(&Options::default(), &bench).unwrap();
    for set in plan.items.chunks(4) {
        assert!(set.iter().all(|item| item.contestant == set[0].contestant));
        assert_eq!(set.iter().map(|item| item.load).collect::<Vec<_>>(), Load::ALL);
    }
}

#[test]
fn adapters_are_chosen_by_name_and_a_wrong_name_is_answered_with_the_nearest() {
    let options =
        |names: &[&str]| Options { adapters: names.iter().map(|n| (*n).to_owned()).collect(), ..Options::default() };
    assert_eq!(plan(&options(&["e1000"])).contestants.len(), 2);
    assert_eq!(plan(&options(&["all"])).contestants.len(), 4);
    let error = Plan::new(&options(&["e100"]), &FakeBench::two_servers()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--adapters: there is no adapter \"e100\" here; did you mean \"e1000\"?; allowed are all, e1000, virtio-net"
    );
    let error = Plan::new(&options(&["token-ring"]), &FakeBench::two_servers()).unwrap_err();
    assert!(!error.to_string().contains("did you mean"));
}

#[test]
fn an_adapter_that_cannot_be_driven_here_is_left_out_with_the_reason_and_alone_is_an_error() {
    let why = "the program is not there";
    let gone = |adapter, server| (Contestant::new(adapter, server), why.to_owned());
    let mut bench = FakeBench::two_servers();
    bench.absent = vec![gone("vmxnet", Server::Nicety), gone("vmxnet2", Server::Nicety)];
    bench.absent.push((Contestant::new("vmxnet", Server::Qemu), "QEMU has no such adapter".to_owned()));
    let of = |names: &[&str]| {
        let adapters = names.iter().map(|name| (*name).to_owned()).collect();
        Plan::new(&Options { adapters, ..Options::default() }, &bench)
    };
    let sentence = "vmxnet and vmxnet2 are left out: the program is not there";
    for all in [of(&[]), of(&["all"])] {
        let all = all.unwrap();
        assert_eq!((all.contestants.len(), all.warnings()), (4, vec![sentence.to_owned()]));
    }
    let some = of(&["e1000", "vmxnet2"]).unwrap();
    assert_eq!(some.left_out, ["vmxnet2 is left out: the program is not there"]);
    assert_eq!(of(&["e1000"]).unwrap().left_out, Vec::<String>::new());
    assert_eq!(of(&["vmxnet", "vmxnet2"]).unwrap_err().to_string(), format!("--adapters: {sentence}"));
    let unknown = of(&["vmxnet4"]).unwrap_err().to_string();
    assert!(unknown.ends_with("allowed are all, e1000, virtio-net, vmxnet, vmxnet2"), "{unknown}");
    // Only QEMU's own model is missing: nothing is left out, and one note says what is not measured.
    let linked = Plan::new(&Options::default(), &FakeBench::linked()).unwrap();
    assert_eq!(
        (linked.left_out.len(), linked.warnings()),
        (0, vec!["virtio-net without qemu: QEMU has none".to_owned()])
    );
    let is_planned = |item: &&Item| item.contestant == Contestant::new("virtio-net", Server::Qemu);
    assert_eq!(linked.items.iter().filter(is_planned).count(), 0);
}

#[test]
fn impossible_numbers_are_refused() {
    let bench = FakeBench::two_servers();
    for seconds in [0.0, -1.0, 0.05, 3601.0, f64::NAN, f64::INFINITY] {
        let options = Options { seconds: Some(seconds), ..Options::default() };
        assert_eq!(Plan::new(&options, &bench).unwrap_err(), PlanError::Seconds);
    }
    for repeat in [0, 1001, u32::MAX] {
        let options = Options { repeat: Some(repeat), ..Options::default() };
        assert_eq!(Plan::new(&options, &bench).unwrap_err(), PlanError::Repeat);
    }
    let empty = FakeBench { contestants: Vec::new(), ..FakeBench::two_servers() };
    assert_eq!(Plan::new(&Options::default(), &empty).unwrap_err(), PlanError::Nothing);
}

#[test]
fn three_adapters_fit_three_minutes_and_with_qemu_twenty() {
    let three = |server| ["e1000", "vmxnet3", "virtio-net"].map(|adapter| Contestant::new(adapter, server));
    let embedded = FakeBench {
        guests: Guests::Embedded,
        contestants: three(Server::Nicety).to_vec(),
        overhead: Duration::from_millis(300),
        ..FakeBench::two_servers()
    };
    let plan = Plan::new(&Options::default(), &embedded).unwrap();
    assert!(plan.estimate() < Duration::from_secs(170), "{:?}", plan.estimate());
    assert!(plan.duration >= Duration::from_secs(1));

    let real = FakeBench {
        guests: Guests::Qemu,
        contestants: [three(Server::Nicety), three(Server::Qemu)].concat(),
        overhead: Duration::from_millis(1_500),
        ..FakeBench::two_servers()
    };
    let plan = Plan::new(&Options::default(), &real).unwrap();
    assert!(plan.estimate() < Duration::from_secs(18 * 60), "{:?}", plan.estimate());
    assert!(plan.duration >= Duration::from_secs(4));
}

#[test]
fn every_adapter_fits_three_minutes_and_the_quick_look_one() {
    let contestants = nicety_adapters::REGISTRY.iter().map(|entry| Contestant::new(entry.about.name, Server::Nicety));
    let bench = FakeBench {
        guests: Guests::Embedded,
        contestants: contestants.collect(),
        overhead: Duration::from_millis(60),
        ..FakeBench::two_servers()
    };
    let all = Plan::new(&Options::default(), &bench).unwrap();
    assert!(all.items.len() >= 16 * 4 * 7 && all.estimate() < Duration::from_secs(180), "{:?}", all.estimate());
    let quick = Plan::new(&Options { quick: true, ..Options::default() }, &bench).unwrap();
    assert!(quick.estimate() < Duration::from_secs(60), "{:?}", quick.estimate());
    assert!(quick.duration >= Duration::from_millis(200));
}

#[test]
fn a_plan_says_how_long_it_takes_from_its_own_runs() {
    let of = |options: &Options| plan(options).announcement();
    let three = Options { repeat: Some(3), seconds: Some(0.4), ..Options::default() };
    // 3 rounds of 4 contestants and 4 loads, each with 100 ms beside its 0.4 s.
    assert_eq!(of(&three), "48 runs of 0.4 s, which take about 24 s once the guests have started");
    let longer = Options { seconds: Some(1.9), ..three };
    assert_eq!(of(&longer), "48 runs of 1.9 s, which take about 1 min 36 s once the guests have started");
}

#[test]
fn user_mode_guests_fit_five_minutes_in_whole_seconds() {
    let servers = |server| ["e1000", "vmxnet3", "virtio-net"].map(|adapter| Contestant::new(adapter, server));
    let mut contestants = Server::ALL.map(servers).concat();
    contestants.retain(|it| it.adapter != "virtio-net" || it.server != Server::Qemu);
    let uml = FakeBench { contestants, overhead: Duration::from_millis(1_400), ..FakeBench::linked() };
    let plan = Plan::new(&Options::default(), &uml).unwrap();
    assert_eq!(plan.items.len(), 7 * 8 * 2);
    assert!(plan.estimate() < Duration::from_secs(5 * 60), "{:?}", plan.estimate());
    assert_eq!(plan.duration, Duration::from_secs(1));
    let plan = Plan::new(&Options { adapters: vec!["e1000".into()], ..Options::default() }, &uml).unwrap();
    assert_eq!(plan.duration, Duration::from_secs(3), "netperf counts whole seconds");
}

#[test]
fn fewer_than_seven_rounds_are_said_to_give_no_interval() {
    let options = Options { quick: true, ..Options::default() };
    let embedded = FakeBench { guests: Guests::Embedded, ..FakeBench::two_servers() };
    let quick = Plan::new(&options, &embedded).unwrap();
    assert_eq!((quick.repeat, quick.duration), (3, Duration::from_millis(500)));
    let quick = Plan::new(&options, &FakeBench { guests: Guests::Qemu, ..embedded }).unwrap();
    assert_eq!((quick.repeat, quick.duration), (3, Duration::from_secs(1)), "netperf counts whole seconds");
    assert_eq!(quick.warnings(), ["3 rounds: fewer than 7 runs give no 95 % interval"]);
    assert!(plan(&Options::default()).warnings().is_empty());
}
