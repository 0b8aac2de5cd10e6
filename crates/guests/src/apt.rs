//! A private apt: it uses the machine's own Debian mirror with other suites and other folders, without root rights.
//! Formats: sources.list(5) (one-line and deb822), apt.conf(5), apt_preferences(5).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    command::run,
    error::{Error, file, tail},
};

/// A Debian mirror from the machine's own sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    uri: String,
    /// Fields copied unchanged into our own source: `Signed-By` and `Trusted`.
    fields: Vec<(String, String)>,
}

impl Mirror {
    /// Whether this is Debian's own archive, and not a third party's packages for Debian.
    fn official(uri: &str, components: &str, suites: &str, signed_by: Option<&str>) -> bool {
        let segments: Vec<&str> = uri.split('/').collect();
        let whole_archive = !segments.iter().any(|s| matches!(*s, "debian-security" | "debian-debug" | "debian-ports"))
            && !suites.contains("-security")
            && !suites.contains("-debug");
        let has_main = components.split_whitespace().any(|c| c == "main");
        let known = match signed_by {
            Some(key) => key.contains("debian-archive-keyring"),
            None => segments.iter().any(|s| *s == "debian" || s.starts_with("debian.")),
        };
        whole_archive && has_main && known && !uri.starts_with("cdrom:")
    }
}

/// The Debian mirrors in an apt configuration folder (`/etc/apt`), in apt's reading order, each once.
pub(super) fn mirrors(folder: &Path) -> Vec<Mirror> {
    let mut files = vec![folder.join("sources.list")];
    let mut parts: Vec<PathBuf> =
        fs::read_dir(folder.join("sources.list.d")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    parts.sort();
    files.extend(parts);
    let mut found: Vec<Mirror> = Vec::new();
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let mirrors = match path.extension().and_then(|e| e.to_str()) {
            Some("list") => text.lines().filter_map(one_line).collect(),
            Some("sources") => deb822(&text),
            _ => Vec::new(),
        };
        for mirror in mirrors {
            if !found.iter().any(|have| have.uri == mirror.uri) {
                found.push(mirror);
            }
        }
    }
    found
}

/// `deb [signed-by=...] URI SUITE COMPONENT...`
fn one_line(line: &str) -> Option<Mirror> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(after) => after.split_once(']')?,
        None => ("", rest),
    };
    let option = |name: &str| {
        options.split_whitespace().find_map(|o| o.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let components = words.collect::<Vec<_>>().join(" ");
    let signed_by = option("signed-by");
    Mirror::official(uri, &components, suite, signed_by.as_deref()).then(|| Mirror {
        uri: uri.to_owned(),
        fields: [("Signed-By", signed_by), ("Trusted", option("trusted"))]
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect(),
    })
}

/// The mirrors in a deb822 file. Empty lines separate stanzas; leading white space continues a field.
fn deb822(text: &str) -> Vec<Mirror> {
    let mut stanzas: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(stanza) = stanzas.last_mut() else { continue };
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            stanza.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    stanzas.iter().flat_map(|stanza| stanza_mirrors(stanza)).collect()
}

fn stanza_mirrors(stanza: &[(String, String)]) -> Vec<Mirror> {
    let field = |name: &str| stanza.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str());
    let off = matches!(field("enabled"), Some("no" | "false" | "0"));
    let binary = field("types").is_some_and(|types| types.split_whitespace().any(|t| t == "deb"));
    if off || !binary {
        return Vec::new();
    }
    let (components, suites) = (field("components").unwrap_or_default(), field("suites").unwrap_or_default());
    let uris = field("uris").unwrap_or_default().split_whitespace();
    uris.filter(|uri| Mirror::official(uri, components, suites, field("signed-by")))
        .map(|uri| Mirror {
            uri: uri.to_owned(),
            fields: [("Signed-By", "signed-by"), ("Trusted", "trusted")]
                .into_iter()
                .filter_map(|(name, key)| Some((name.to_owned(), field(key)?.to_owned())))
                .collect(),
        })
        .collect()
}

/// A package file that apt would download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deb {
    /// The file's name in the archive folder, `NAME_VERSION_ARCHITECTURE.deb`.
    pub file: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl Deb {
    /// The package's name.
    pub fn name(&self) -> &str {
        self.file.split('_').next().unwrap_or_default()
    }

    /// The package's version.
    pub fn version(&self) -> String {
        self.file.split('_').nth(1).unwrap_or_default().replace("%3a", ":").replace("%2b", "+")
    }
}

/// apt with folders of its own, one mirror, and the suites of the recipe.
pub(super) struct Apt {
    folder: PathBuf,
    mirror: String,
    /// Source entry of the first suite's source packages, written only when one is needed.
    sources: String,
}

impl Apt {
    /// Writes the private configuration into `folder`. Downloads of an earlier, interrupted run there are used again.
    pub fn new(folder: &Path, mirror: &Mirror, suites: &[&str], preferences: &str) -> Result<Apt, Error> {
        for name in ["parts", "empty", "lists/partial", "archives/partial", "none/partial", "log"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(file("make the folder", path))?;
        }
        let mut source = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nArchitectures: amd64\nTargets: Packages\n",
            mirror.uri,
            suites.join(" ")
        );
        let first = suites.first().copied().unwrap_or_default();
        let mut sources =
            format!("Types: deb-src\nURIs: {}\nSuites: {first}\nComponents: main\nTargets: Sources\n", mirror.uri);
        for (name, value) in &mirror.fields {
            source.push_str(&format!("{name}: {value}\n"));
            sources.push_str(&format!("{name}: {value}\n"));
        }
        for (name, text) in [
            ("parts/debian.sources", source.as_str()),
            ("preferences", preferences),
            ("status", ""),
            ("apt.conf", &configuration(folder)),
        ] {
            let path = folder.join(name);
            fs::write(&path, text).map_err(file("write", path))?;
        }
        Ok(Apt { folder: folder.to_owned(), mirror: mirror.uri.clone(), sources })
    }

    /// Folder of the downloaded packages.
    pub fn archives(&self) -> PathBuf {
        self.folder.join("archives")
    }

    /// The mirror in use.
    pub fn mirror(&self) -> &str {
        &self.mirror
    }

    /// Downloads the package lists.
    pub fn update(&self) -> Result<(), Error> {
        self.get("reading the mirror's package lists", &["update", "--error-on=any"]).map(drop)
    }

    /// The packages and all their dependencies, as files.
    pub fn closure(&self, packages: &[&str]) -> Result<Vec<Deb>, Error> {
        // apt leaves out files that it has already downloaded. An archive folder that stays empty prevents that.
        let nowhere = format!("Dir::Cache::archives={}/none", self.folder.display());
        let mut arguments = vec!["-o", &nowhere, "install", "--print-uris"];
        arguments.extend(packages);
        let text = self.get("resolving the packages", &arguments)?;
        Ok(text.lines().filter_map(printed_uri).collect())
    }

    /// Downloads the packages and all their dependencies into the archive folder.
    pub fn bring_closure(&self, packages: &[&str]) -> Result<(), Error> {
        let mut arguments = vec!["install", "--download-only"];
        arguments.extend(packages);
        self.get("bringing the packages", &arguments).map(drop)
    }

    /// Downloads packages without their dependencies into the archive folder.
    pub fn bring_alone(&self, packages: &[&str]) -> Result<(), Error> {
        let mut arguments = vec!["download"];
        arguments.extend(packages);
        self.get("bringing the kernels", &arguments).map(drop)
    }

    /// Downloads the upstream archive of a source package from the first suite. Returns its path.
    pub fn bring_source(&self, package: &str) -> Result<PathBuf, Error> {
        let sources = self.folder.join("parts/sources.sources");
        fs::write(&sources, &self.sources).map_err(file("write", &sources))?;
        self.update()?;
        let doing = "resolving a source package";
        let text = self.get(doing, &["source", "--print-uris", "--download-only", package])?;
        let failed = |said| Error::Apt { doing, program: "apt-get", mirror: self.mirror.clone(), said };
        let (uri, name, sum) =
            text.lines().find_map(original).ok_or_else(|| failed(format!("{package} has no archive in\n{text}")))?;
        let path = self.archives().join(name);
        let mut helper = Command::new("/usr/lib/apt/apt-helper");
        helper.arg("-c").arg(self.folder.join("apt.conf")).args(["-qq", "download-file", uri]).arg(&path).arg(sum);
        helper.env("LC_ALL", "C").stdout(Stdio::null());
        run(&mut helper, || format!("bringing {uri}"))?;
        Ok(path)
    }

    fn get(&self, doing: &'static str, arguments: &[&str]) -> Result<String, Error> {
        let output = Command::new("apt-get")
            .arg("-qq")
            .arg("-c")
            .arg(self.folder.join("apt.conf"))
            .args(arguments)
            .current_dir(self.archives())
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .map_err(|_| Error::Program { program: "apt-get", package: "apt" })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = tail(&String::from_utf8_lossy(&output.stderr), 8);
        Err(Error::Apt { doing, program: "apt-get", mirror: self.mirror.clone(), said })
    }
}

/// Parses a line of `apt-get --print-uris`: `'URI' FILE BYTES HASH`.
fn printed_uri(line: &str) -> Option<Deb> {
    let (_, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut words = rest.split(' ');
    Some(Deb { file: words.next()?.to_owned(), bytes: words.next()?.parse().ok()? })
}

/// The address, file and checksum in such a line, if it names the upstream archive of a source package.
fn original(line: &str) -> Option<(&str, &str, &str)> {
    let (uri, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut words = rest.split(' ');
    let (name, sum) = (words.next()?, words.nth(1)?);
    let (_, packed) = name.split_once(".orig.tar.")?;
    (!packed.contains('.') && sum.starts_with("SHA256:")).then_some((uri, name, sum))
}

/// The private configuration. apt reads it after the machine's own (`-c`), so that a proxy set there still applies.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "#clear APT::Update;\n#clear DPkg::Pre-Install-Pkgs;\n#clear DPkg::Post-Invoke;\n\
         Dir::State \"{folder}\";\nDir::State::status \"{folder}/status\";\nDir::State::Lists \"{folder}/lists\";\n\
         Dir::Cache \"{folder}\";\nDir::Cache::archives \"{folder}/archives\";\n\
         Dir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\nDir::Log \"{folder}/log\";\n\
         Dir::Etc::SourceList \"/dev/null\";\nDir::Etc::SourceParts \"{folder}/parts\";\n\
         Dir::Etc::Preferences \"{folder}/preferences\";\nDir::Etc::PreferencesParts \"{folder}/empty\";\n\
         APT::Sandbox::User \"root\";\nAPT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\n\
         APT::Install-Recommends \"false\";\nAPT::Get::Assume-Yes \"true\";\nAPT::Default-Release \"\";\n\
         APT::Keep-Downloaded-Packages \"true\";\nAcquire::Languages \"none\";\nAcquire::Retries \"3\";\n\
         Acquire::http::Timeout \"30\";\nAcquire::https::Timeout \"30\";\nDebug::NoLocking \"true\";\n"
    )
}

#[cfg(test)]
#[path = "apt_test.rs"]
mod tests;
