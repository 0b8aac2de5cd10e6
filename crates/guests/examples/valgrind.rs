//! Lays valgrind for a machine that has none, and prints the words to start it with, one a line. `cargo xtask test` runs this.

mod help;

use std::{error::Error, time::Instant};

use nicety_guests::Valgrind;

fn main() -> Result<(), Box<dyn Error>> {
    help::on_request(include_str!("valgrind.rs"));
    let begin = Instant::now();
    let valgrind = Valgrind::lay(&mut |line| eprintln!("{:6.1} s  {line}", begin.elapsed().as_secs_f64()))?;
    let command = valgrind.command();
    println!("env");
    let unset = command.get_envs().filter(|(_, value)| value.is_none());
    unset.for_each(|(name, _)| println!("--unset={}", name.display()));
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    set.for_each(|(name, value)| println!("{}={}", name.display(), value.display()));
    std::iter::once(command.get_program()).chain(command.get_args()).for_each(|word| println!("{}", word.display()));
    Ok(())
}
