//! `iscsi-mix`: "10G: more than a big pipe", its storage test. One guest reads a disk over iSCSI (open-iscsi's kernel initiator; the target is
//! tgt, outside) while three others send as fast as they can: what the storage has left, and what the others have.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use nicety_guests::{Error, Layer};

use super::field::Adapters;
use super::rig::{Measurement, Run, rig};
use super::{About, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::{BenchError, Percentile};
use crate::method::Guests;
use crate::rate::Rate;
use crate::real::iperf::{self, IPERF, report};
use crate::real::native::{self, Native};
use crate::real::outside::{self, OUTSIDE, Outside, Several};
use crate::real::veth::Tc;
use crate::results::Direction;
use crate::spent::Stopwatch;

/// Programs of guests and target.
const PACKAGES: &[&str] = &["iperf", "open-iscsi", "fio", "tgt"];
const ISCSISTART: &str = "usr/sbin/iscsistart";
const FIO: &str = "usr/bin/fio";
/// The folder in which the guest finds librados's libraries.
const CEPH: &str = "/layer/usr/lib/x86_64-linux-gnu/ceph";
const FILES: &[&str] = &[IPERF, ISCSISTART, FIO];
/// Names of target and initiator (RFC 3720, 3.2.6).
const TARGET: &str = "iqn.2026-11.nicety:disk";
const INITIATOR: &str = "iqn.2026-11.nicety:guest";
/// Guests: the first has the disk.
const GUESTS: usize = 4;
const STREAMS: u32 = 4;
/// The link: the document's, which this machine may not fill; a tenth of it; and that with I/O control.
const LINK: &str = "rate = \"10Gbit/s\"\n";
const FULL_LINK: &str = "rate = \"1Gbit/s\"\n";
const CONTROLLED: &str = "rate = \"1Gbit/s\"\ninward_rate = \"970Mbit/s\"\n\n\
                          [[io_class]]\nuplink = \"n0\"\nname = \"iscsi\"\nreservation = \"400Mbit/s\"\ndelay = \"low\"\n\n\
                          [[io_class]]\nuplink = \"n0\"\nname = \"vm\"\n";
const MEMORY_MIB: u32 = 256;
/// Bytes of the disk. It lies in the host's page cache: no disk's speed is in the figures.
const DISK_BYTES: u64 = 64 << 20;
/// Readers in the guest, each with one request at a time.
const READERS: u32 = 4;
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const ADAPTERS: Adapters = Adapters::with_functions(&["e1000e", "vmxnet3"]);

/// Percentiles of a storage operation's time that are kept, among those that fio says.
const KEPT: [f64; 5] = [1.0, 50.0, 90.0, 99.0, 99.9];

const FIGURES: [Figure; 9] = [
    Figure::new("storage", "Storage", "MB/s", Direction::Higher),
    Figure::new("iops", "Storage operations", "per second", Direction::Higher),
    Figure::new("latency", "A storage operation takes", "µs", Direction::Lower),
    Figure::new("p50", "A storage operation takes, median", "µs", Direction::Lower),
    Figure::new("p99", "A storage operation takes, 99th percentile", "µs", Direction::Lower),
    Figure::new("others", "The three others", "Mbit/s", Direction::Higher),
    Figure::new("cpu_seconds", "CPU of VMMs and Nicety", "CPU-s per second", Direction::Lower),
    Figure::new("daemon_cpu_seconds", "Nicety's CPU", "CPU-s per second", Direction::Lower),
    Figure::new("vmm_cpu_seconds", "VMMs' CPU", "CPU-s per second", Direction::Lower),
];

/// A note for the reader about the storage's figures, with nobody beside it.
const STORAGE: &str = "What the guest reads from its disk. The document: 1.5 times as much with four virtual functions: compare the rows \
                       igbvf and ixgbevf, functions of one card, with the others.";
/// The same while the others send.
const STORAGE_BESIDE: &str = "What the guest reads from its disk. The directions differ: the disk's blocks come inward, and what the three \
                              guests send goes outward. A link that is full outward has room inward: of the storage only requests and \
                              acknowledgements wait in it. The document: 1.5 times as much with four virtual functions: compare the rows \
                              igbvf and ixgbevf, functions of one card, with the others.";

/// The method (see the module's page).
#[derive(Debug)]
pub struct IscsiMix;

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    title: &'static str,
    /// fio's kind of access and size.
    access: (&'static str, &'static str),
    /// Whether the others send meanwhile.
    loaded: bool,
    /// The uplink's lines in the host file, and classes behind it.
    link: &'static str,
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "alone",
        title: "reads of 64 KB in order, nobody else",
        access: ("read", "64k"),
        loaded: false,
        link: LINK,
    },
    Shape {
        name: "mix",
        title: "reads of 64 KB in order, three guests send",
        access: ("read", "64k"),
        loaded: true,
        link: LINK,
    },
    Shape {
        name: "mix-random",
        title: "reads of 4 KB anywhere, three guests send",
        access: ("randread", "4k"),
        loaded: true,
        link: LINK,
    },
    Shape {
        name: "mix-full",
        title: "reads of 64 KB in order, three guests fill a link of 1 Gbit/s outward",
        access: ("read", "64k"),
        loaded: true,
        link: FULL_LINK,
    },
    Shape {
        name: "mix-io-control",
        title: "reads of 64 KB in order, three guests fill a link of 1 Gbit/s outward, with I/O control",
        access: ("read", "64k"),
        loaded: true,
        link: CONTROLLED,
    },
];

/// Remark of the native row.
const NO_INITIATOR: &str = "without storage: its initiator would be the host's own kernel";

impl Shape {
    /// The link's rate. None with I/O control.
    fn plain(self) -> Option<Rate> {
        match self.link {
            LINK => Some(Rate { mbit: 10_000 }),
            FULL_LINK => Some(Rate { mbit: 1_000 }),
            _ => None,
        }
    }
}

fn shape(load: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| shape.name == load)
}

fn fio(shape: Shape, seconds: u32) -> String {
    let (kind, size) = shape.access;
    format!(
        "fio --name=disk --filename=/dev/sda --readonly --direct=1 --ioengine=psync --thread --numjobs={READERS} --group_reporting \
         --rw={kind} --bs={size} --time_based --runtime={seconds} --minimal"
    )
}

fn client(address: &str, seconds: u32) -> String {
    format!("iperf -c {address} -P {STREAMS} -t {seconds} -f k")
}

impl Method for IscsiMix {
    fn about(&self) -> About {
        About {
            name: "iscsi-mix",
            document: Some((4, "10G: more than a big pipe")),
            line: "one guest reads a disk over iSCSI, three others send: storage MB/s and operations, the others' throughput, CPU",
            needs: "user-mode guests (a C compiler, once); Debian packages, 400 MB once",
            guests: &[Guests::Uml],
            overhead_seconds: 3.0,
            memory_mib: Some(MEMORY_MIB),
            disk_bytes: 180_000_000,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        ADAPTERS.ours(length).chain([Subject::native()]).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 3,
            Length::Usual => 10,
            Length::Full => 120,
        });
        let load = |shape: Shape| {
            let mut commands = vec![
                format!("outside: tgtd, a disk of {} MB in memory", DISK_BYTES >> 20),
                format!("guest 1: iscsistart -i {INITIATOR} -t {TARGET} -g 1 -a OUTSIDE"),
                format!("guest 1: {}", fio(shape, seconds)),
            ];
            if shape.loaded {
                commands.push("outside: iperf -s".to_owned());
                commands.push(format!("guests 2, 3, 4, meanwhile: {}", client("OUTSIDE", seconds)));
            }
            Load { name: shape.name.to_owned(), title: shape.title.to_owned(), seconds, commands }
        };
        SHAPES.into_iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for shape in loads.iter().filter_map(|load| shape(&load.name)) {
            let mut table = |title: &str, figure, about| {
                tables.push(Table {
                    title: format!("{title}: {}", shape.title),
                    load: shape.name.to_owned(),
                    figure,
                    bases: &["e1000-82545em", "e1000e"],
                    document: &[],
                    about,
                });
            };
            let random = shape.access.0 == "randread";
            let storage = if shape.loaded { STORAGE_BESIDE } else { STORAGE };
            if random {
                table("Operations", "iops", "Four readers in the guest, each with one request at a time.");
                table("Latency", "latency", "Mean time of an operation.");
                table("Slow operations", "p99", "One operation in a hundred takes longer.");
            } else {
                table("Storage", "storage", storage);
            }
            if shape.loaded && !random {
                table("The others", "others", "Sum of the three guests that send.");
                table("CPU", "cpu_seconds", "VMMs with their guests and Nicety together, a second.");
                table("Nicety's CPU", "daemon_cpu_seconds", "Of that, Nicety's daemon alone.");
                table("VMMs' CPU", "vmm_cpu_seconds", "Of that, the VMMs with all that runs in their guests.");
            }
        }
        tables
    }

    fn open(&self, mut opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let tc = opening.tc()?;
        let Opening { plan, program, say, .. } = opening;
        let layer = Layer::lay("storage", PACKAGES, say)?;
        let programs = Some((layer.clone(), FILES));
        let opening = outside::Opening { programs, ..outside::Opening::of(plan, program, MEMORY_MIB) };
        let mut outside = Outside::open(opening, say)?;
        outside.serve(&iperf::program(&layer, "iperf -s"))?;
        let mut storage = Storage { outside, layer, native: native::Kept::default(), tc };
        storage.target()?;
        Ok(rig(storage))
    }
}

#[derive(Debug)]
struct Storage {
    outside: Outside,
    layer: Layer,
    native: native::Kept<Native>,
    tc: Option<Tc>,
}

impl Storage {
    /// A program of tgt, with its control socket in our folder (tgtd(8), `TGT_IPC_SOCKET`).
    fn tgt(&self, program: &str, words: &[&str]) -> Command {
        let program = self.layer.program(format!("usr/sbin/{program}"));
        let mut command = Command::new(self.outside.root().busybox());
        command.arg("env").arg(format!("TGT_IPC_SOCKET={}", self.outside.folder().path().join("tgt").display()));
        command.arg(program.get_program()).args(program.get_args()).args(words);
        command
    }

    /// Starts the target with its disk.
    fn target(&mut self) -> Result<(), Error> {
        let disk = self.outside.folder().path().join("disk");
        let made = std::fs::File::create(&disk).and_then(|file| file.set_len(DISK_BYTES));
        made.map_err(|error| Error::Run { doing: "making a disk".to_owned(), said: error.to_string() })?;
        let daemon = self.tgt("tgtd", &["-f", "--iscsi", &format!("portal={OUTSIDE}:3260")]);
        self.outside.serve(&daemon)?;
        let (disk, stop) = (disk.display().to_string(), AtomicBool::new(false));
        let steps: [&[&str]; 3] = [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET],
            &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &disk],
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ];
        let end = Instant::now() + SLACK;
        for step in steps {
            // It answers once it has made its socket.
            loop {
                let command = self.tgt("tgtadm", &[&["--lld", "iscsi"], step].concat());
                let (said, _) = self.outside.run(&command, SLACK, &stop, &mut |_| Ok(()))?;
                if said.trim().is_empty() {
                    break;
                }
                if Instant::now() > end {
                    return Err(Error::Run { doing: format!("tgtadm {}", step.join(" ")), said });
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }
}

impl Measurement for Storage {
    type Layout = Shape;
    type Guests = Several;

    fn layout(load: &str) -> Option<Shape> {
        shape(load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        standing.link == wanted.link
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<Several, BenchError> {
        Ok(self.outside.boot_several(run.subject, GUESTS, run.layout.link, 1, run.stop)?)
    }

    /// Gives the first guest its disk.
    fn warm(&mut self, several: &mut Several, run: &Run<'_, Shape>) -> Result<(), BenchError> {
        let attach = format!(
            "iscsistart -i {INITIATOR} -t {TARGET} -g 1 -a {OUTSIDE} -p 3260 >/tmp/iscsi 2>&1 || {{ cat /tmp/iscsi; exit 1; }}; \
             until [ -e /sys/block/sda/dev ]; do rest; done; \
             [ -b /dev/sda ] || mknod /dev/sda b $(tr : ' ' </sys/block/sda/dev)"
        );
        Ok(several.each(&[attach], SLACK, run.stop).map(drop)?)
    }

    fn measure(&mut self, several: &mut Several, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (shape, seconds) = (run.layout, run.load.seconds);
        // A library of fio's storage drivers has libraries of its own beside the others.
        let mut commands = vec![format!("LD_LIBRARY_PATH={CEPH} {}", fio(shape, seconds))];
        if shape.loaded {
            // The output is held back until the end: lines would cross the console during the measurement.
            let send = format!(
                "said=$({} 2>&1); code=$?; echo \"$said\" | grep -v '^\\[ *[0-9]'; (exit $code)",
                client(OUTSIDE, seconds)
            );
            commands.resize(GUESTS, send);
        }
        let watch = Stopwatch::start(several.spent());
        let said = several.each(&commands, SLACK + run.duration(), run.stop)?;
        let (spent, steal_percent) = watch.stop(several.spent());
        let unparsed = || Error::Run { doing: "fio and iperf".to_owned(), said: said.join("\n") };
        let (mut figures, latency) = said.first().and_then(|text| storage(text)).ok_or_else(unparsed)?;
        if shape.loaded {
            let others = said.iter().skip(1).map(|text| mbit(text)).sum::<Option<f64>>().ok_or_else(unparsed)?;
            figures.insert("others".to_owned(), others);
        }
        figures.extend(spent.per(seconds.into(), "_seconds"));
        Ok(Taken { figures, latency: Some(latency), steal_percent, ..Taken::default() })
    }

    /// The three that send, between two namespaces over a link of the load's rate.
    fn natively(&mut self, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let shape = run.layout;
        let Some(rate) = shape.plain().filter(|_| shape.loaded) else {
            return Ok(Taken::marked(if shape.loaded { "a plain link has no I/O control" } else { NO_INITIATOR }));
        };
        let (root, layer, tc) = (self.outside.root(), &self.layer, self.tc.as_ref().ok_or(Error::Stopped)?);
        let open = || Native::serving(root, &[(iperf::program(layer, "iperf -s"), native::IPERF_PORT)]);
        let client = iperf::program(layer, &client(native::FAR, run.load.seconds));
        let said = self.native.with(open, |native| {
            native.pace(tc, rate)?;
            native.at_once(root, &client, GUESTS - 1, SLACK + run.duration(), run.stop)
        })?;
        let unparsed = || Error::Run { doing: "iperf without a virtual machine".to_owned(), said: said.join("\n") };
        let others = said.iter().map(|text| mbit(text)).sum::<Option<f64>>().ok_or_else(unparsed)?;
        let figures = BTreeMap::from([("others".to_owned(), others)]);
        Ok(Taken { figures, ..Taken::marked(NO_INITIATOR) })
    }

    fn end(&mut self, several: Several) -> Result<(), BenchError> {
        Ok(self.outside.end_several(several)?)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.outside.notes();
        notes.push(format!(
            "The disk is one of tgt outside, {} MB in the host's page cache: no disk's speed is in the figures. The initiator is the kernel's \
             (iscsi_tcp), logged in by open-iscsi's iscsistart. fio stands for the document's IOmeter, whose pattern it does not give.",
            DISK_BYTES >> 20
        ));
        notes.push(
            "On a link of 10 Gbit/s the machine's processors are the bound, and I/O control has nothing to divide. The two loads of 1 Gbit/s show \
             it: iSCSI has a reservation of 400 Mbit/s and low delay, outward and inward (at 970 Mbit/s)."
                .to_owned(),
        );
        notes.push(
            "native: the three that send, between two network namespaces over a veth pair that tc paces to the link's rate. It has no storage: the \
             initiator would be the host's own kernel, which only root may have log in, and which has one network for all."
                .to_owned(),
        );
        notes
    }
}

/// The rate that iperf reports.
fn mbit(text: &str) -> Option<f64> {
    report(text)?.taken.figures.get("mbit").copied()
}

/// Figures of fio's terse output, version 3 (fio(1), "Terse output"): bandwidth in KB/s, operations, mean completion latency in µs, and twenty
/// percentiles of it, `99.000000%=4111`, of which unused ones are `0%=0`.
fn storage(text: &str) -> Option<(BTreeMap<String, f64>, Vec<Percentile>)> {
    let line = text.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    if *fields.get(4)? != "0" {
        return None;
    }
    let number = |index: usize| fields.get(index)?.parse::<f64>().ok().filter(|value| *value > 0.0);
    let (bandwidth, operations, latency) = (number(6)?, number(7)?, number(15)?);
    let percentile = |field: &&str| {
        let (percent, us) = field.split_once("%=")?;
        let (percent, us) = (percent.parse().ok()?, us.parse().ok()?);
        Some(Percentile { percent, us }).filter(|_| KEPT.contains(&percent))
    };
    let known: Vec<Percentile> = fields.iter().filter_map(percentile).take(KEPT.len()).collect();
    let of = |percent: f64| known.iter().find(|known| known.percent == percent).map(|known| known.us);
    let figures = [
        ("storage", Some(bandwidth * 1024.0 / 1e6)),
        ("iops", Some(operations)),
        ("latency", Some(latency)),
        ("p50", of(50.0)),
        ("p99", of(99.0)),
    ];
    let figures = figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    Some((figures, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_that_the_storage_reads_inward_while_the_others_send_outward() {
        let tables = IscsiMix.tables(&IscsiMix.loads(Guests::Uml, Length::Usual, None));
        let beside = |table: &&Table| table.figure == "storage" && table.load != "alone";
        assert_eq!(tables.iter().filter(beside).count(), 3);
        for table in tables.iter().filter(beside) {
            assert!(table.about.contains("The directions differ: the disk's blocks come inward"), "{table:?}");
            assert!(!table.title.contains("fill a link") || table.title.contains("1 Gbit/s outward"), "{table:?}");
        }
    }

    #[test]
    fn a_plain_link_has_the_rate_of_its_line_in_the_host_file() {
        for shape in SHAPES {
            let said = shape.plain().map(|rate| format!("rate = \"{rate}\"\n"));
            assert_eq!(said.as_deref(), (shape.name != "mix-io-control").then_some(shape.link), "{shape:?}");
        }
    }

    /// fio 3.39 in a user-mode guest, the first fields.
    #[test]
    fn fio_s_terse_line_is_bandwidth_operations_and_latency() {
        let text = "3;fio-3.39;disk;0;0;190464;63488;992;3000;0;0;0.000000;0.000000;1203;9120;4021.5;702.3;1.000000%=1302;5.000000%=1400;\
                    50.000000%=3981;90.000000%=5210;99.000000%=7110;99.900000%=8912;0%=0;0%=0;1206;9130;4030.1;700.0;";
        let (figures, latency) = storage(text).unwrap();
        assert_eq!((figures["iops"], figures["latency"]), (992.0, 4021.5));
        assert!((figures["storage"] - 65.011712).abs() < 1e-9, "{figures:?}");
        assert_eq!((figures["p50"], figures["p99"]), (3981.0, 7110.0));
        let known: Vec<(f64, f64)> = latency.iter().map(|known| (known.percent, known.us)).collect();
        assert_eq!(known, [(1.0, 1302.0), (50.0, 3981.0), (90.0, 5210.0), (99.0, 7110.0), (99.9, 8912.0)]);
        for wrong in
            ["", "fio: failed to open /dev/sda", "3;fio-3.39;disk;0;5;190464;63488;992;3000;0;0;0;0;1;2;3.0;4;"]
        {
            assert_eq!(storage(wrong), None, "{wrong}");
        }
    }
}
