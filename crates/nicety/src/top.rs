//! `nicety top`: rates, drops, queues and processor time of a running daemon, again each second.

mod amount;
mod hosts;
mod page;
mod sample;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_control::api::{DaemonView, PortList, ThreadList};
use nicety_control::{self as control, Ask, Reply};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Modifier;
use ratatui::text::Line;
use ratatui::widgets::Widget;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::answer::{failure, odd};
use crate::capture::TICK;
use crate::cli::Top;
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;
use page::Page;
use sample::Sample;

/// Interval between two samples.
const REFRESH: Duration = Duration::from_secs(1);
/// Columns of a printed page, and its lines in addition to the ports' lines.
const WIDTH: u16 = 80;
const HEAD: u16 = 3;

/// Runs it.
pub fn run(args: &Top) -> Result<(), Failure> {
    let terminal = io::stdout().is_terminal();
    if !args.once && !terminal {
        return Err(Failure::new(Exit::Usage, "stdout is no terminal: `nicety top --once` prints one page"));
    }
    let control = socket(&args.which, None)?;
    let first = look(&control)?;
    let mut page = Page::new(daemon(&control)?, first);
    if args.once {
        std::thread::sleep(REFRESH);
        page.next(look(&control)?);
        return output::print(&text(&page));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&ended)).map_err(Failure::with(Exit::Failed))?;
    }
    let shown = show(&control, &mut page, &ended);
    ratatui::restore();
    shown
}

/// Shows the page until the person ends it.
fn show(control: &Path, page: &mut Page, ended: &AtomicBool) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(Exit::Failed, format!("the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut looked = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        let draw = |frame: &mut ratatui::Frame<'_>| {
            let [above, last] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
            page.draw(above, frame.buffer_mut());
            keys(last.width, page.fabric().is_some()).render(last, frame.buffer_mut());
        };
        terminal.draw(draw).map_err(failed)?;
        let until = (looked + REFRESH).saturating_duration_since(Instant::now());
        if event::poll(until.min(TICK)).map_err(failed)?
            && let Event::Key(key) = event::read().map_err(failed)?
            && key.kind != KeyEventKind::Release
        {
            let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('c' | 'd') if is_control => break,
                KeyCode::Char('q') => break,
                code => page.key(code),
            }
        }
        if looked.elapsed() >= REFRESH {
            looked = Instant::now();
            // The daemon may come back: the page shows the error meanwhile.
            match look(control) {
                Ok(sample) => page.next(sample),
                Err(failure) => page.fails(failure.message),
            }
        }
    }
    Ok(())
}

/// The keys, in words that fit.
fn keys(width: u16, has_fabric: bool) -> Line<'static> {
    let [long, short] = match has_fabric {
        false => [
            "q end  ←→ sort by  r turn round  ↑↓ choose  Enter all of a port  Esc back",
            "q end ←→ sort r turn ↑↓ choose ⏎ all",
        ],
        true => [
            "q end  ←→ sort by  r turn round  ↑↓ choose  Enter all  f hosts  Esc back",
            "q end ←→ sort r turn ↑↓ choose ⏎ all f hosts",
        ],
    };
    let fits = long.chars().count() <= usize::from(width);
    Line::styled(if fits { long } else { short }, Modifier::DIM)
}

/// Samples the daemon's counters.
fn look(control: &Path) -> Result<Sample, Failure> {
    let ports = match control::ask(control, Ask::Ports).map_err(failure)? {
        Reply::Ports(PortList { ports, .. }) => ports,
        other => return Err(odd(&other)),
    };
    let at = Instant::now();
    match control::ask(control, Ask::Threads).map_err(failure)? {
        Reply::Threads(ThreadList { threads }) => {
            Ok(Sample { at, ports, threads, fabric: crate::ports::fabric::of(control)? })
        }
        other => Err(odd(&other)),
    }
}

fn daemon(control: &Path) -> Result<DaemonView, Failure> {
    match control::ask(control, Ask::Version).map_err(failure)? {
        Reply::Version(daemon) => Ok(daemon),
        other => Err(odd(&other)),
    }
}

/// The page as lines, all ports and all hosts of the fabric included.
fn text(page: &Page) -> String {
    let fabric = page.fabric();
    let head = HEAD + u16::from(fabric.is_some());
    let height = head.saturating_add(u16::try_from(page.len().max(1)).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(Rect::new(0, 0, WIDTH, height));
    page.draw(buffer.area, &mut buffer);
    let mut text = String::new();
    for line in buffer.content.chunks(usize::from(WIDTH)) {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let hosts = fabric.filter(|hosts| !hosts.is_empty()).map(|hosts| format!("\n{}\n", hosts.join("\n")));
    text + &hosts.unwrap_or_default()
}
