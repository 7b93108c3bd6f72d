// Runs the program of a systemd unit on machines where systemd is not process 1: under the unit's
// system calls, capabilities, address families and read-only root, as a user of its own, with a
// socket to which the program reports that it is ready. Messages on that socket are printed as
// "notify: ..." lines.
//   usage: unit_launcher --groups FILE [--program FILE] [--state DIR] [--kill] UNIT [ARGUMENT...]
//     --groups FILE   the system calls of @system-service and other groups: syscall_groups.txt
//     --program FILE  runs this program instead of the one of ExecStart
//     --state DIR     the state folder instead of /var/lib/ and StateDirectory
//     --kill          a call outside the list ends the program, where the unit has it fail
// ARGUMENTs follow those of ExecStart. Exits with the program's code; 77 where mounts are refused.
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int exit_skipped = 77;
constexpr uid_t service_user = 61184;  // the first user id of the range that DynamicUser= uses

const std::map<std::string, long>& call_numbers() {
    static const std::map<std::string, long> numbers = {
#include "syscall_numbers.inc"
    };
    return numbers;
}

struct Skipped : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void require(bool done, const std::string& what) {
    if (!done) throw std::runtime_error(what + ": " + std::strerror(errno));
}
void require_allowed(bool done, const std::string& what) {
    // EINVAL is the error of kernels, containers and file systems that lack a feature.
    const bool is_refused = errno == EPERM || errno == EACCES || errno == ENOSYS || errno == EINVAL;
    if (!done && is_refused) throw Skipped(what + " is not allowed here");
    require(done, what);
}

Words words_of(const std::string& line) {
    std::istringstream in(line);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
}

// The section [Service] of a unit file: each key with the words of its values. An empty value
// clears the values before it, as in systemd.
class Unit {
  public:
    explicit Unit(const fs::path& file) {
        std::ifstream in(file);
        require(in.good(), file.string());

        bool is_service = false;
        for (std::string line; std::getline(in, line);) {
            if (line.starts_with('[')) is_service = line == "[Service]";
            const std::size_t equals = line.find('=');
            if (!is_service || line.starts_with('#') || equals == std::string::npos) continue;

            Words value = words_of(line.substr(equals + 1));
            std::vector<Words>& values = keys_[line.substr(0, equals)];
            if (value.empty()) values.clear();
            values.push_back(std::move(value));
        }
    }

    const std::vector<Words>& lines(const std::string& key) const {
        const auto found = keys_.find(key);
        if (found == keys_.end()) throw std::runtime_error("the unit has no " + key);
        return found->second;
    }
    std::string word(const std::string& key) const {
        const Words& words = lines(key).back();
        return words.empty() ? std::string() : words.front();
    }
    bool has(const std::string& key) const { return keys_.contains(key); }
    bool on(const std::string& key) const { return has(key) && word(key) == "yes"; }

  private:
    std::map<std::string, std::vector<Words>> keys_;
};

class Groups {
  public:
    explicit Groups(const fs::path& file) {
        std::ifstream in(file);
        require(in.good(), file.string());
        std::string name;
        for (std::string line; std::getline(in, line);) {
            if (line.starts_with('@')) name = line;
            if (!line.starts_with(' ')) continue;
            for (const std::string& word : words_of(line)) groups_[name].push_back(word);
        }
    }

    // Calls `function` with the number of the system call `name`, or with the numbers of all calls
    // of a group. Calls that this machine does not have are skipped.
    void visit(const std::string& name, const auto& function) const {
        if (!name.starts_with('@')) {
            const auto found = call_numbers().find(name);
            if (found != call_numbers().end()) function(found->second);
            return;
        }
        const auto found = groups_.find(name);
        if (found == groups_.end())
            throw std::runtime_error(name + " is not in the list of groups");
        for (const std::string& part : found->second) visit(part, function);
    }

  private:
    std::map<std::string, Words> groups_;
};

// Returns the system calls that SystemCallFilter= allows. Its value is a list of allowed calls; a
// list that begins with "~" removes calls.
std::set<long> allowed_calls(const Unit& unit, const Groups& groups) {
    std::set<long> calls;
    groups.visit("@default", [&](long call) { calls.insert(call); });
    for (Words line : unit.lines("SystemCallFilter")) {
        const bool takes_away = line.front().starts_with('~');
        if (takes_away) line.front().erase(0, 1);
        for (const std::string& name : line)
            groups.visit(name, [&](long call) {
                if (takes_away)
                    calls.erase(call);
                else
                    calls.insert(call);
            });
    }
    return calls;
}

// The filter of system calls as a BPF program for the kernel. Some calls are filtered by an
// argument, all others by their number. Sources: seccomp(2), systemd.exec(5).
class Filter {
  public:
    explicit Filter(std::uint32_t refusal) : refusal_(refusal) {
        load(offsetof(seccomp_data, arch));
        code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
        answer(SECCOMP_RET_KILL_PROCESS);
        load(offsetof(seccomp_data, nr));
    }

    // Refuses the system call `call` if all bits of `mask` are set in an argument.
    void refuse_bits(long call, int argument, std::uint32_t mask) {
        judge(call, {statement(argument), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mask, 0, 1), returns(errno_of(EPERM)),
                     returns(SECCOMP_RET_ALLOW)});
    }
    // Refuses the system call `call` if any bit of `mask` is set in an argument.
    void refuse_any_bit(long call, int argument, std::uint32_t mask) {
        judge(call, {statement(argument), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1),
                     returns(errno_of(EPERM)), returns(SECCOMP_RET_ALLOW)});
    }
    void refuse(long call, int error) { judge(call, {returns(errno_of(error))}); }
    // Allows the system call `call` only if an argument has one of these values.
    void allow_values(long call, int argument, const std::vector<std::uint32_t>& values,
                      int error) {
        std::vector<sock_filter> judgement = {statement(argument)};
        for (const std::uint32_t value : values) {
            judgement.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
            judgement.push_back(returns(SECCOMP_RET_ALLOW));
        }
        judgement.push_back(returns(errno_of(error)));
        judge(call, judgement);
    }
    void allow(long call) { judge(call, {returns(SECCOMP_RET_ALLOW)}); }

    void install() {
        answer(refusal_);
        const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
        require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
    }

  private:
    static std::uint32_t errno_of(int error) {
        return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error);
    }
    static sock_filter returns(std::uint32_t action) { return BPF_STMT(BPF_RET | BPF_K, action); }
    static sock_filter statement(int argument) {
        const auto at = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * argument);
        return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
    }
    void load(std::size_t offset) {
        code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
    }
    void answer(std::uint32_t action) { code_.push_back(returns(action)); }
    void judge(long call, const std::vector<sock_filter>& judgement) {
        code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0,
                                 static_cast<std::uint8_t>(judgement.size())));
        code_.insert(code_.end(), judgement.begin(), judgement.end());
    }

    std::uint32_t refusal_;
    std::vector<sock_filter> code_;
};

std::vector<std::uint32_t> address_families(const Unit& unit) {
    const std::map<std::string, std::uint32_t> known = {{"AF_UNIX", AF_UNIX},
                                                        {"AF_INET", AF_INET},
                                                        {"AF_INET6", AF_INET6},
                                                        {"AF_NETLINK", AF_NETLINK}};
    std::vector<std::uint32_t> families;
    for (const Words& line : unit.lines("RestrictAddressFamilies"))
        for (const std::string& name : line) families.push_back(known.at(name));
    return families;
}

void limit_calls(const Unit& unit, const std::set<long>& calls, bool kill) {
    Filter filter(kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM);
    if (unit.on("MemoryDenyWriteExecute")) {
        filter.refuse_bits(SYS_mmap, 2, PROT_WRITE | PROT_EXEC);
        filter.refuse_bits(SYS_mprotect, 2, PROT_EXEC);
        filter.refuse_bits(SYS_pkey_mprotect, 2, PROT_EXEC);
        filter.refuse_bits(SYS_shmat, 2, SHM_EXEC);
    }
    if (unit.on("RestrictNamespaces")) {
        filter.refuse_any_bit(SYS_clone, 0,
                              CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                  CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP);
        // The flags of clone3 are in memory, where a filter cannot read them. With ENOSYS the C
        // library falls back to clone.
        filter.refuse(SYS_clone3, ENOSYS);
    }
    if (unit.on("LockPersonality")) filter.allow_values(SYS_personality, 0, {0, ~0u}, EPERM);
    filter.allow_values(SYS_socket, 0, address_families(unit), EAFNOSUPPORT);
    for (const long call : calls) filter.allow(call);
    filter.install();
}

// Makes the whole file system read-only, except for the state folder. Folders for temporary files
// are replaced by empty folders, unless they hold a needed file.
void enter_read_only_root(const fs::path& state, const fs::path& program) {
    require_allowed(unshare(CLONE_NEWNS) == 0, "a mount namespace");
    // Ignore the result: if "/" is no mount point, as in a chroot, its mount propagation cannot
    // change.
    (void)mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);

    char folder[] = "/tmp/moex-unit.XXXXXX";
    require(mkdtemp(folder) != nullptr, "mkdtemp");
    const fs::path root = folder;
    require_allowed(mount("/", folder, nullptr, MS_BIND | MS_REC, nullptr) == 0, "mount");
    // removes the folder's name; its mount stays
    rmdir((root / fs::path(folder).relative_path()).c_str());
    mount_attr read_only{};
    read_only.attr_set = MOUNT_ATTR_RDONLY;
    require_allowed(
        mount_setattr(AT_FDCWD, folder, AT_RECURSIVE, &read_only, sizeof read_only) == 0,
        "a read-only mount");

    for (const char* temporary : {"/tmp", "/var/tmp"}) {
        if (program.string().starts_with(std::string(temporary) + "/")) continue;
        require(mount("tmpfs", (folder + std::string(temporary)).c_str(), "tmpfs",
                      MS_NOSUID | MS_NODEV, "mode=1777") == 0,
                temporary);
    }
    const fs::path place = root / state.relative_path();
    fs::create_directories(place);
    require(mount(state.c_str(), place.c_str(), nullptr, MS_BIND, nullptr) == 0, state.string());
    require(chroot(folder) == 0 && chdir("/") == 0, "chroot");
}

void write_file(const char* file, const std::string& words) {
    const int descriptor = open(file, O_WRONLY | O_CLOEXEC);
    require_allowed(descriptor >= 0, file);
    const bool done = write(descriptor, words.data(), words.size()) ==
                      static_cast<ssize_t>(words.size());
    require_allowed(done, file);
    close(descriptor);
}

// A user other than root first becomes root in a new user namespace, in which mounts are allowed.
void become_root_of_namespace() {
    const std::string user = std::to_string(getuid()), group = std::to_string(getgid());
    require_allowed(unshare(CLONE_NEWUSER) == 0, "a user namespace");
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", user + " " + user + " 1");
    write_file("/proc/self/gid_map", group + " " + group + " 1");
}

bool may_run(uid_t user, const fs::path& program) {
    const pid_t child = fork();
    if (child == 0) {
        const bool changed = setgroups(0, nullptr) == 0 && setgid(user) == 0 && setuid(user) == 0;
        _exit(changed && access(program.c_str(), X_OK) == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0;
}

void drop_capabilities(const Unit& unit) {
    if (!unit.word("CapabilityBoundingSet").empty())
        throw std::runtime_error("only an empty CapabilityBoundingSet is understood here");
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; ++capability)
        require(prctl(PR_CAPBSET_DROP, capability) == 0, "PR_CAPBSET_DROP");
}

struct Launch {
    fs::path groups, program, state;
    bool kill = false;
    Words arguments;
};

// Runs in the child process: applies all restrictions of the unit, then executes the program.
[[noreturn]] void become_program(const Unit& unit, const Launch& launch,
                                 const std::string& socket) {
    const std::set<long> calls = allowed_calls(unit, Groups(launch.groups));
    Words command = unit.lines("ExecStart").back();
    if (!launch.program.empty()) command.front() = launch.program;
    const fs::path program = command.front();
    command.insert(command.end(), launch.arguments.begin(), launch.arguments.end());

    const bool is_root = getuid() == 0;
    if (!is_root) become_root_of_namespace();
    const uid_t user = is_root && may_run(service_user, program) ? service_user : getuid();
    fs::create_directories(launch.state);
    if (is_root) require(chown(launch.state.c_str(), user, user) == 0, launch.state.string());
    if (unit.word("ProtectSystem") == "strict") enter_read_only_root(launch.state, program);

    const rlim_t files = std::stoul(unit.word("LimitNOFILE"));
    const rlimit limit{files, files};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        std::printf("launcher: LimitNOFILE=%lu is more than this machine gives\n", files);
    drop_capabilities(unit);
    if (user != getuid())
        require(setgroups(0, nullptr) == 0 && setgid(user) == 0 && setuid(user) == 0, "setuid");
    if (unit.on("NoNewPrivileges"))
        require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");

    clearenv();
    setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
    setenv("LANG", "C.UTF-8", 1);
    setenv("NOTIFY_SOCKET", socket.c_str(), 1);
    setenv("WATCHDOG_USEC", (unit.word("WatchdogSec") + "000000").c_str(), 1);
    std::printf("launcher: user %u, read-only root, no capabilities, %zu system calls, others %s\n",
                user, calls.size(), launch.kill ? "end the program" : "fail");
    std::fflush(stdout);

    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    limit_calls(unit, calls, launch.kill);
    execv(argv.front(), argv.data());
    require(false, program.string());
    std::abort();
}

// The notification socket has an abstract name, which is in no file system, so no folder has to be
// writable for it.
int open_notify_socket(std::string& name) {
    name = "@moex-unit-" + std::to_string(getpid());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
    const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    require(bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0, name);
    return socket;
}

void print_word(int socket) {
    char words[4096];
    const ssize_t size = recv(socket, words, sizeof words, MSG_DONTWAIT);
    if (size <= 0) return;
    std::istringstream lines(std::string(words, static_cast<std::size_t>(size)));
    for (std::string line; std::getline(lines, line);) std::printf("notify: %s\n", line.c_str());
    std::fflush(stdout);
}

int run(const Unit& unit, const Launch& launch) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, signal);
    sigset_t before;
    sigprocmask(SIG_BLOCK, &signals, &before);
    std::string socket_name;
    const int socket = open_notify_socket(socket_name);

    const pid_t child = fork();
    if (child == 0) {
        close(socket);
        sigprocmask(SIG_SETMASK, &before, nullptr);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        become_program(unit, launch, socket_name);
    }

    pollfd sources[] = {{socket, POLLIN, 0}, {signalfd(-1, &signals, SFD_CLOEXEC), POLLIN, 0}};
    for (;;) {
        poll(sources, 2, -1);
        print_word(socket);
        if ((sources[1].revents & POLLIN) == 0) continue;

        signalfd_siginfo signal{};
        if (read(sources[1].fd, &signal, sizeof signal) != sizeof signal) continue;
        if (signal.ssi_signo != SIGCHLD) kill(child, static_cast<int>(signal.ssi_signo));
        int status = 0;
        if (waitpid(child, &status, WNOHANG) != child) continue;

        print_word(socket);
        if (WIFEXITED(status)) return WEXITSTATUS(status);
        std::printf("launcher: ended by signal %d%s\n", WTERMSIG(status),
                    WTERMSIG(status) == SIGSYS ? ", a system call outside the unit's list" : "");
        return 128 + WTERMSIG(status);
    }
}

}  // namespace

int main(int argc, char** argv) {
    Launch launch;
    std::string unit_file;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const bool has_value = i + 1 < argc;
        if (!unit_file.empty())
            launch.arguments.push_back(word);
        else if (word == "--kill")
            launch.kill = true;
        else if (word == "--groups" && has_value)
            launch.groups = argv[++i];
        else if (word == "--program" && has_value)
            launch.program = fs::absolute(argv[++i]);
        else if (word == "--state" && has_value)
            launch.state = fs::absolute(argv[++i]);
        else
            unit_file = word;
    }
    try {
        const Unit unit(unit_file);
        if (launch.state.empty()) launch.state = fs::path("/var/lib") / unit.word("StateDirectory");
        return run(unit, launch);
    } catch (const Skipped& reason) {
        std::printf("launcher: %s\n", reason.what());
        std::fflush(stdout);
        _exit(exit_skipped);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unit_launcher: %s\n", error.what());
        _exit(1);
    }
}
