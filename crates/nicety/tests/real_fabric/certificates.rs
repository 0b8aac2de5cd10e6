//! Certificates that are not valid at this time: they have expired, or a clock is wrong.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_servers::addresses;
use crate::{Connection, GROUPS, Host, carried, until};

/// Years in which a certificate is valid.
const EXPIRED: (i32, i32) = (2020, 2021);
const VALID: (i32, i32) = (2020, 2999);
/// The same, seen by a machine whose clock is far behind.
const NOT_YET: (i32, i32) = (2998, 2999);

/// A CA, and its files.
struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Ca {
    fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ours");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder: folder.to_owned() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Replaces the server's certificate, which etcd reads anew for each connection.
    fn certify(&self, address: &str, years: (i32, i32)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([address.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (name, text) in [("etcd.pem", certificate.pem()), ("etcd.key", key.serialize_pem())] {
            std::fs::write(self.file(name), text).unwrap();
        }
    }
}

#[test]
fn a_fabric_whose_certificates_have_expired_or_are_not_valid_yet_goes_on_and_is_back_with_new_ones() {
    let (place, tls) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [at] = addresses();
    let ca = Ca::new(tls.path());
    ca.certify(&at, VALID);
    let options = ["etcd.pem", "etcd.key"].map(|name| ca.file(name).display().to_string());
    let options = [format!("--cert-file={}", options[0]), format!("--key-file={}", options[1])];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start_secure(at.clone(), ca.file("ca.pem"), &options);
    cluster.ready();
    cluster.put("config", GROUPS);
    let ends = addresses::<2>();
    let [one, other] = &[("one", 1), ("other", 2)].map(|(name, number)| {
        let ports = [("vmxnet3", "web", number)];
        let mut host = Host::new(place.path(), name, &ends[usize::from(number) - 1], &cluster, &ports);
        host.add(&format!("etcd_ca = \"{}\"\n", ca.file("ca.pem").display()));
        host.serve();
        host
    });
    let (mut a, mut b) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2));
    let know = || one.place(2).as_deref() == Some("other") && other.place(1).as_deref() == Some("one");
    until("they know each other", know);
    for (years, why, remedy) in [
        (EXPIRED, "etcd's certificate has expired", "renew it, or set this machine's clock"),
        (NOT_YET, "etcd's certificate is not valid yet", "set this machine's clock"),
    ] {
        ca.certify(&at, years);
        // Connections that stand are not asked for certificates again.
        cluster.kill(0);
        cluster.run(0);
        let says = |host: &Host| {
            let report = host.report();
            let is_away = matches!(report.connection, Connection::Away | Connection::Forgotten);
            is_away && report.why_not.is_some_and(|said| said.contains(why) && said.contains(remedy))
        };
        until(why, || says(one) && says(other));
        assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000, "{why}");
        let (code, _, said) = one.run(&["fabric", "group", "add", "new", "vni=5030", "vlan=30"]);
        assert!(code != Some(0) && said.contains(why) && said.contains(remedy), "{code:?} {said}");
        // A new certificate of the same CA: nothing has to be started again.
        ca.certify(&at, VALID);
        until("they are back", || one.is_connected() && other.is_connected());
        until("they know each other again", know);
        assert!(carried(&mut a, &mut b) > 100_000);
    }
}
