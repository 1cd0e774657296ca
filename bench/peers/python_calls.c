// bench/peers/python_calls.c: what CPython alone costs: methods with the arguments of weft.fi's calls, which check no
// key, no bounds and no types, and have no queue. bench/common.py compiles it.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

static char *place; // where put() copies to, and the word of fetch_add()

static PyObject *use(PyObject *self, PyObject *address) {
  (void)self;
  place = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

// Any arguments.
static PyObject *nothing(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  (void)self, (void)args, (void)count, (void)names;
  Py_RETURN_NONE;
}

static int numbers(PyObject *const *args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyLong_AsUnsignedLongLong(args[i]) == (unsigned long long)-1 && PyErr_Occurred()) return 0;
  }
  return 1;
}

// fetch_add(buf, desc, result, result_desc, dest_addr, addr, key, datatype, op)
static PyObject *fetch_add(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  Py_buffer operand, result;
  if (count != 9 || !numbers(args + 4, 5)) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "nine arguments");
  if (PyObject_GetBuffer(args[0], &operand, PyBUF_SIMPLE) != 0) return NULL;
  if (PyObject_GetBuffer(args[2], &result, PyBUF_WRITABLE) != 0) {
    PyBuffer_Release(&operand);
    return NULL;
  }
  const uint64_t old = __atomic_fetch_add((uint64_t *)place, *(uint64_t *)operand.buf, __ATOMIC_SEQ_CST);
  memcpy(result.buf, &old, sizeof(old));
  PyBuffer_Release(&result);
  PyBuffer_Release(&operand);
  Py_RETURN_NONE;
}

// put(buf, desc, dest_addr, addr, key)
static PyObject *put(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  (void)self;
  Py_buffer buf;
  if (count != 5 || !numbers(args + 2, 3)) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "five arguments");
  if (PyObject_GetBuffer(args[0], &buf, PyBUF_SIMPLE) != 0) return NULL;
  memcpy(place, buf.buf, (size_t)buf.len);
  PyBuffer_Release(&buf);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"use", use, METH_O, NULL},
                                {"nothing", (PyCFunction)(void *)nothing, METH_FASTCALL | METH_KEYWORDS, NULL},
                                {"fetch_add", (PyCFunction)(void *)fetch_add, METH_FASTCALL, NULL},
                                {"put", (PyCFunction)(void *)put, METH_FASTCALL, NULL},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "python_calls", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_python_calls(void) { return PyModule_Create(&module); }
