#include "tests/support/postgres_server.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace moex::test {
namespace {

namespace fs = std::filesystem;

// Debian 12 has version 15, Ubuntu 24.04 has version 16.
fs::path programs() {
    const fs::path folder = "/usr/lib/postgresql";
    return fs::exists(folder / "15") ? folder / "15/bin" : folder / "16/bin";
}

// PostgreSQL does not run as root, so root starts it as `nobody`.
const passwd* unprivileged_user() { return geteuid() == 0 ? getpwnam("nobody") : nullptr; }

// Starts a program in a process group of its own, with its messages in `messages` (a descriptor).
pid_t spawn(const std::vector<std::string>& command, int messages, const fs::path& folder) {
    const passwd* const user = unprivileged_user();
    const pid_t parent = getpid(), child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) return child;

    setpgid(0, 0);
    if (user &&
        (setgroups(0, nullptr) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0))
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGQUIT);
    if (getppid() != parent || chdir(folder.c_str()) != 0) _exit(126);
    dup2(messages, STDERR_FILENO);
    dup2(messages, STDOUT_FILENO);
    setenv("LC_ALL", "C", 1);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
}

}  // namespace

bool PostgresServer::is_installed() { return fs::exists(programs() / "initdb"); }

PostgresServer::PostgresServer() {
    std::string pattern = (fs::temp_directory_path() / "moex-postgres-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    if (const passwd* const user = unprivileged_user())
        if (chown(folder_.c_str(), user->pw_uid, user->pw_gid) != 0)
            throw std::runtime_error("the temporary folder cannot be given away");

    const int log = ::open((folder_ / "initdb.log").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const pid_t maker = spawn({programs() / "initdb", "-D", folder_ / "data", "-U", "moex", "-A",
                               "trust", "-E", "UTF8", "--locale=C", "--no-sync"},
                              log, folder_);
    int status = 0;
    waitpid(maker, &status, 0);
    ::close(log);
    if (status != 0) {
        std::ifstream file(folder_ / "initdb.log");
        throw std::runtime_error("initdb failed: " +
                                 std::string(std::istreambuf_iterator<char>(file), {}));
    }
    start();
}

PostgresServer::~PostgresServer() {
    stop();
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
}

void PostgresServer::start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe is left");
    process_ = spawn({programs() / "postgres", "-D", folder_ / "data", "-k", folder_, "-c",
                      "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=40"},
                     ends[1], folder_);
    ::close(ends[1]);
    std::string messages;
    char buffer[1024];
    while (messages.find("ready to accept connections") == std::string::npos) {
        const ssize_t size = ::read(ends[0], buffer, sizeof buffer);
        if (size <= 0) throw std::runtime_error("postgres did not start: " + messages);
        messages.append(buffer, static_cast<std::size_t>(size));
    }
    // A full pipe must not hold the server up.
    drain_ = std::thread([from = ends[0]] {
        char ignored[1024];
        while (::read(from, ignored, sizeof ignored) > 0) {}
        ::close(from);
    });
}

void PostgresServer::stop() {
    if (process_ < 0) return;
    freeze(false);
    kill(process_, SIGQUIT);
    waitpid(process_, nullptr, 0);
    process_ = -1;
    drain_.join();
}

void PostgresServer::freeze(bool frozen) {
    // Each connection has a process, which begins a session of its own: all are children of the
    // server's process.
    const std::string server = std::to_string(process_);
    kill(process_, frozen ? SIGSTOP : SIGCONT);
    for (const auto& entry : fs::directory_iterator("/proc")) {
        std::ifstream file(entry.path() / "stat");
        std::string id, name, state, parent;
        if (file >> id && std::getline(file, name, ')') && file >> state >> parent &&
            parent == server)
            kill(std::stoi(id), frozen ? SIGSTOP : SIGCONT);
    }
}

std::string PostgresServer::url() const {
    std::string host;
    for (const char c : folder_.string()) host += c == '/' ? std::string("%2F") : std::string(1, c);
    return "postgresql://moex@" + host + "/postgres";
}

}  // namespace moex::test
