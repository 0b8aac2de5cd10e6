//! Programs that tests start on this machine: Debian's packages, installed beside the root, so that no test depends on what the machine
//! has. `cargo xtask test` lays them; a test that needs one also lays it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    error::{Error, file},
    layer::Layer,
    root::LIBRARIES,
};

/// A program of a layer.
#[derive(Debug, Clone)]
pub struct Tool {
    layer: Layer,
    path: &'static str,
}

/// The layer of a set of programs.
struct Set {
    name: &'static str,
    packages: &'static [&'static str],
    programs: &'static [&'static str],
}

/// The browser has one family of typefaces, so that a page looks the same on each machine: DejaVu, the widest usual one.
const PAPER: Set = Set {
    name: "paper",
    packages: &["chromium-headless-shell", "fonts-dejavu-core", "poppler-utils"],
    programs: &[CHROMIUM, "usr/bin/pdftotext"],
};
const TSHARK: Set = Set { name: "tshark", packages: &["tshark"], programs: &["usr/bin/tshark", "usr/bin/dumpcap"] };
const SHELL: Set = Set {
    name: "shell",
    packages: &["busybox-static", "curl", "iproute2", "socat", "tcpdump"],
    programs: &["usr/bin/curl", "usr/bin/ip", "usr/bin/socat", "usr/bin/tcpdump"],
};
const NFDUMP: Set = Set { name: "nfdump", packages: &["nfdump"], programs: &["usr/bin/nfdump", "usr/bin/nfcapd"] };
/// Its plugins for databases and queues bring their libraries, which nothing here uses.
const PMACCT: Set = Set { name: "pmacct", packages: &["pmacct"], programs: &["usr/sbin/nfacctd"] };
/// The package without Python: nothing here needs its scripts.
const GDB: Set = Set { name: "gdb", packages: &["gdb-minimal"], programs: &["usr/bin/gdb"] };
const CHROMIUM: &str = "usr/lib/chromium/chromium-headless-shell";

impl Set {
    fn tool(&self, path: &'static str, progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        Layer::lay_with(self.name, self.packages, self.programs, progress).map(|layer| Tool { layer, path })
    }
}

impl Tool {
    /// Installs all of them that are missing. `progress` gets a line for each step.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay_all(progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        Tool::chromium(progress)?;
        Tool::tshark(progress)?;
        Tool::gdb(progress)?;
        Tool::nfdump(progress)?;
        Tool::nfacctd(progress)?;
        Tool::tcpdump(progress).map(drop)
    }

    /// Chromium without windows; [`Tool::browser`] starts it.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn chromium(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        PAPER.tool(CHROMIUM, progress)
    }

    /// poppler's `pdftotext`.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn pdftotext(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        PAPER.tool("usr/bin/pdftotext", progress)
    }

    /// Wireshark's `tshark`, beside its `dumpcap`.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn tshark(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        TSHARK.tool("usr/bin/tshark", progress)
    }

    /// `tcpdump`. [`Tool::folder`] also has `busybox`, `curl`, `ip` and `socat`.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn tcpdump(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        SHELL.tool("usr/bin/tcpdump", progress)
    }

    /// `nfdump`, which reads flows. [`Tool::folder`] also has the collector, `nfcapd`.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn nfdump(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        NFDUMP.tool("usr/bin/nfdump", progress)
    }

    /// pmacct's collector of flows, `nfacctd`.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn nfacctd(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        PMACCT.tool("usr/sbin/nfacctd", progress)
    }

    /// `gdb`, without its scripts in Python.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn gdb(progress: &mut dyn FnMut(&str)) -> Result<Tool, Error> {
        GDB.tool("usr/bin/gdb", progress)
    }

    /// The program's path. It can be started as it is.
    pub fn path(&self) -> PathBuf {
        self.layer.path(self.path)
    }

    /// The folder of the program and of those beside it, for `PATH`.
    pub fn folder(&self) -> PathBuf {
        self.path().parent().map(Path::to_owned).unwrap_or_default()
    }

    /// The program's command.
    pub fn command(&self) -> Command {
        Command::new(self.path())
    }

    /// The command of [`Tool::chromium`], with its settings and its list of typefaces in `folder`, which must exist.
    ///
    /// # Errors
    /// [`Error::File`] if that list cannot be written.
    pub fn browser(&self, folder: &Path) -> Result<Command, Error> {
        let fonts = folder.join("fonts.conf");
        let alias = |(of, family): (&str, &str)| {
            format!("<alias binding=\"same\"><family>{of}</family><prefer><family>{family}</family></prefer></alias>\n")
        };
        let families = [
            ("system-ui", "DejaVu Sans"),
            ("sans-serif", "DejaVu Sans"),
            ("serif", "DejaVu Serif"),
            ("ui-monospace", "DejaVu Sans Mono"),
            ("monospace", "DejaVu Sans Mono"),
        ];
        let text = format!(
            "<?xml version=\"1.0\"?>\n<!DOCTYPE fontconfig SYSTEM \"urn:fontconfig:fonts.dtd\">\n<fontconfig>\n\
             <dir>{}</dir>\n<cachedir>{}</cachedir>\n{}</fontconfig>\n",
            self.layer.path("usr/share/fonts").display(),
            folder.join("fonts").display(),
            families.map(alias).concat()
        );
        fs::write(&fonts, text).map_err(file("write", &fonts))?;
        let mut command = self.command();
        command.args(["--headless", "--no-sandbox", "--disable-gpu"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        // Its libraries of sound name folders of their own, which only this variable overrides (ld.so(8)). It starts only itself.
        let libraries = self.layer.path(LIBRARIES);
        let libraries = format!("{0}:{0}/pulseaudio", libraries.display());
        command.env("LD_LIBRARY_PATH", libraries).env("FONTCONFIG_FILE", fonts);
        Ok(command)
    }
}
