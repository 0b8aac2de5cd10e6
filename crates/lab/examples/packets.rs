//! Frames per second of vhost-user ports, beside testpmd's: `cargo run --release -p nicety-lab --example packets`.
//!
//! `--rounds N`, `--bytes 64,1518`, `--addresses 1,1000,100000`, `--rings packed` (else split), `--cores 0,1` (generator, server),
//! `--nicety PROGRAM` (else it is built first). Both cores are taken whole: on a machine that does anything else the figures say little.

mod daemon;
mod help;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use nicety_guests::Layer;
use nicety_lab::packets::{Cell, Error, PACKAGES, Plan, Rings};

fn main() -> ExitCode {
    help::on_request(include_str!("packets.rs"));
    let folder = std::env::temp_dir().join(format!("nicety-packets-{}", std::process::id()));
    let plan = match plan(std::env::args().skip(1), folder) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let done = run(&plan);
    let removed = std::fs::remove_dir_all(&plan.folder);
    match (done, removed) {
        (Ok(()), Ok(())) => ExitCode::SUCCESS,
        (Ok(()), Err(error)) => {
            eprintln!("{} was not removed: {error}", plan.folder.display());
            ExitCode::FAILURE
        }
        (Err(error), _) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn plan(mut words: impl Iterator<Item = String>, folder: PathBuf) -> Result<Plan, String> {
    let mut plan = Plan {
        nicety: PathBuf::new(),
        folder,
        cores: [0, 1],
        rounds: 7,
        wire_bytes: vec![64, 1518],
        addresses: vec![1, 1_000, 100_000],
        rings: Rings::Split,
    };
    let mut named = None;
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--rounds" => plan.rounds = value.parse().map_err(|_| format!("--rounds: {value} is no number"))?,
            "--bytes" => plan.wire_bytes = list(&word, &value)?,
            "--addresses" => plan.addresses = list(&word, &value)?,
            "--rings" => {
                plan.rings = match value.as_str() {
                    "split" => Rings::Split,
                    "packed" => Rings::Packed,
                    _ => return Err(format!("--rings: `{value}` is neither split nor packed")),
                }
            }
            "--cores" => {
                let cores: Vec<u16> = list(&word, &value)?;
                plan.cores = cores.try_into().map_err(|_| "--cores: two are needed, as in 0,1".to_owned())?;
            }
            "--nicety" => named = Some(value.into()),
            _ => {
                return Err(format!(
                    "`{word}` is not known: --rounds, --bytes, --addresses, --rings, --cores, --nicety"
                ));
            }
        }
    }
    plan.nicety = daemon::program(named)?;
    Ok(plan)
}

fn list<T: std::str::FromStr>(word: &str, value: &str) -> Result<Vec<T>, String> {
    value.split(',').map(|item| item.parse().map_err(|_| format!("{word}: {item} is no number"))).collect()
}

fn run(plan: &Plan) -> Result<(), Error> {
    let begin = Instant::now();
    let mut progress = |line: &str| eprintln!("{:6.1} s  {line}", begin.elapsed().as_secs_f64());
    let layer = Layer::lay("packets", PACKAGES, &mut progress)?;
    std::fs::create_dir_all(&plan.folder).map_err(|source| Error::Folder { folder: plan.folder.clone(), source })?;
    println!(
        "Million frames per second through two vhost-user ports, both ways together; median of {} rounds.\n\
         Generator (testpmd, virtio-user, {:?} rings) on core {}, server on core {}.\n{}",
        plan.rounds,
        plan.rings,
        plan.cores[0],
        plan.cores[1],
        Cell::HEAD
    );
    plan.run(&layer, &mut |cell| println!("{}", cell.line()), &mut progress)
}
